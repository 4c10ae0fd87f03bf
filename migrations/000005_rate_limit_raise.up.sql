-- Makes sure that counters show at least what is known to have been used: internal/ratelimit/pgstore is the only caller.
-- It adds what is missing and never more, so it may be repeated. Times are µs since the epoch.
--
--   p_now, p_patience, p_locks   as for rate_limit_decide
--   per counter  key, span, segment length, how many rows count (1 = the newest only: a fixed window), refill in units per
--                p_every µs (0: no bucket), the units known, and how long ago they were
--
-- What a counter has already is judged as the limit would judge it: a fixed window by its row; a sliding one by its rows,
-- where the row that has partly left the window counts by the part that has not (whole, it would hide as many new units);
-- a bucket by the level that is left of its rows after draining.
CREATE FUNCTION rate_limit_raise(
    p_now      bigint,
    p_patience text,
    p_locks    integer[],
    p_keys     text[],
    p_spans    bigint[],
    p_segments bigint[],
    p_rows     integer[],
    p_refills  bigint[],
    p_every    bigint[],
    p_units    bigint[],
    p_ages     bigint[]
) RETURNS bigint  -- how many counters were raised
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    v_now    bigint;
    v_start  bigint;  -- of the row to raise
    v_has    bigint;
    v_level  double precision;
    v_until  bigint;
    v_row    record;
    v_raised bigint := 0;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'rate_limit_raise needs transaction isolation "read committed", not "%"',
            current_setting('transaction_isolation') USING ERRCODE = 'invalid_transaction_state';
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true), set_config('lock_timeout', p_patience, true);
    PERFORM pg_advisory_xact_lock(1346717510, l) FROM unnest(p_locks) AS l;  -- 1346717510 is "PEGF"
    v_now := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);

    FOR i IN 1 .. cardinality(p_keys) LOOP
        v_start := v_now - p_ages[i];
        v_start := v_start - v_start % p_segments[i];
        v_has := 0;
        v_level := 0;
        v_until := NULL;
        FOR v_row IN
            SELECT r.us, r.count
              FROM (SELECT (date_part('epoch', w.window_start) * 1e6)::bigint AS us, w.count
                      FROM rate_limit_windows AS w
                     WHERE w.key = p_keys[i]
                       AND w.window_start > to_timestamp((v_now - p_spans[i] - p_segments[i]) / 1e6::float8)
                       AND w.window_start <= to_timestamp((v_now + p_spans[i] + p_segments[i]) / 1e6::float8)
                     ORDER BY w.window_start DESC
                     LIMIT p_rows[i]) AS r
             ORDER BY r.us
        LOOP
            IF p_rows[i] = 1 THEN
                IF v_row.us >= v_now - v_now % p_segments[i] THEN
                    v_until := v_row.us;  -- the window that counts, which after a backward step is not that of now
                    v_has := v_row.count;
                END IF;
            ELSIF p_refills[i] > 0 THEN
                v_level := greatest(0, v_level - (least(v_row.us + p_segments[i], v_now) - coalesce(v_until, 0))
                                                 * p_refills[i]::float8 / p_every[i]) + v_row.count;
                v_until := least(v_row.us + p_segments[i], v_now);
            ELSIF v_row.us < v_now - p_spans[i] THEN
                v_has := v_has + floor(v_row.count::float8 * (v_row.us + p_segments[i] - v_now + p_spans[i]) / p_segments[i])::bigint;
            ELSE
                v_has := v_has + v_row.count;
            END IF;
        END LOOP;
        IF p_refills[i] > 0 AND v_until IS NOT NULL THEN
            v_has := floor(greatest(0, v_level - (v_now - v_until) * p_refills[i]::float8 / p_every[i]))::bigint;
        END IF;
        IF p_rows[i] = 1 THEN
            v_until := coalesce(v_until, v_now - v_now % p_segments[i]);
            CONTINUE WHEN greatest(v_now, v_until) - p_ages[i] < v_until;  -- an earlier window's
            v_start := v_until;
        END IF;
        CONTINUE WHEN p_units[i] <= v_has;
        INSERT INTO rate_limit_windows AS w (key, window_start, count, expires_at)
        VALUES (p_keys[i], to_timestamp(v_start / 1e6::float8), p_units[i] - v_has,
                to_timestamp((v_start + p_segments[i] + p_spans[i] + 60000000) / 1e6::float8))
        ON CONFLICT (key, window_start) DO UPDATE
           SET count = w.count + excluded.count,
               expires_at = greatest(w.expires_at, excluded.expires_at);
        v_raised := v_raised + 1;
    END LOOP;
    RETURN v_raised;
END
$$;
