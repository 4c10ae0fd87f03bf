-- Counters that live in Postgres: internal/ratelimit/pgstore is the only reader and writer, and the last paragraphs of
-- internal/ratelimit/README.md are the maths.
--
-- One row is the units a counter took in one segment of time: a whole window for fixed_window, an eighth of the window
-- for everything else. Rows are updated in place many times and then never again, so half of each page is left free for
-- the new row versions (HOT: neither index is touched, since no indexed column changes), and vacuum comes early.
CREATE TABLE rate_limit_windows (
    key          text        COLLATE "C" NOT NULL CHECK (octet_length(key) <= 256),
    window_start timestamptz NOT NULL,
    count        bigint      NOT NULL CHECK (count >= 0),
    -- When no decision needs the row any more. Pruning reads it; decisions go by window_start.
    expires_at   timestamptz NOT NULL,
    PRIMARY KEY (key, window_start)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.1
);

CREATE INDEX rate_limit_windows_expires_at ON rate_limit_windows (expires_at);

COMMENT ON TABLE rate_limit_windows IS
    'Rate-limit counters, one row per counter and segment of time. Written with synchronous_commit=off, pruned by expires_at.';

-- Settles charges in order. Times are µs since the epoch.
--
--   p_now       the clock; NULL = clock_timestamp(), read once, after the locks: time then never runs backward within a counter
--   p_patience  how long to wait for each lock, as lock_timeout reads it
--   p_locks     advisory locks to hold, one per counter that may be written, distinct and ascending: all callers take them in
--               one order, and nothing else here waits for another caller, so no two calls can deadlock
--   per charge  kind (0 take, 1 peek, 2 refund), hits, number of counters
--   per counter key, quota, units per hit, span, segment length, how many rows count (1 = the newest only: a fixed window),
--               shadow. For a refund, units are those to give back in all and hits is 1
--
-- Returns, charge by charge, first one row per counter as it was found: the clock, and its live rows, newest first. Then one
-- row per counter of what was done: the row that was added to, the hits the charge admitted, and those of them that this
-- counter let pass.
--
-- The planner is told what it cannot know: these lookups are by primary key, and a table that was empty when the plan was
-- made may hold a million rows a minute later. Every expression here costs about a microsecond a call; keep them few.
--
-- Replicas of two versions may run side by side: other arguments or another result are another function name.
CREATE FUNCTION rate_limit_decide(
    p_now      bigint,
    p_patience text,
    p_locks    integer[],
    p_kinds    integer[],
    p_hits     bigint[],
    p_sizes    integer[],
    p_keys     text[],
    p_quotas   bigint[],
    p_units    bigint[],
    p_spans    bigint[],
    p_segments bigint[],
    p_rows     integer[],
    p_shadow   boolean[]
) RETURNS TABLE (at bigint, starts bigint[], counts bigint[], admitted bigint, passed bigint)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    v_now    bigint;
    v_last   integer := 0;  -- the charge's counters are the p_sizes[i] up to this one
    v_fit    bigint;
    v_fits   bigint[];      -- per counter: hits that fit
    v_newest bigint;
    v_new    bigint[];      -- per counter: start of its newest live row
    v_units  bigint;
    v_taken  bigint;
    v_row    record;
BEGIN
    -- A snapshot older than the locks would read counts from before them.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'rate_limit_decide needs transaction isolation "read committed", not "%"',
            current_setting('transaction_isolation') USING ERRCODE = 'invalid_transaction_state';
    END IF;
    -- Local to the transaction, so that it works through a transaction pooler.
    PERFORM set_config('synchronous_commit', 'off', true), set_config('lock_timeout', p_patience, true);
    PERFORM pg_advisory_xact_lock(1346717510, l) FROM unnest(p_locks) AS l;  -- 1346717510 is "PEGF"
    v_now := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);

    FOR i IN 1 .. cardinality(p_kinds) LOOP
        v_last := v_last + p_sizes[i];
        admitted := p_hits[i];

        -- Read and judge every counter before any is written: all or nothing.
        FOR j IN v_last - p_sizes[i] + 1 .. v_last LOOP
            SELECT v_now, array_agg(r.us), array_agg(r.count), max(r.us),
                   CASE WHEN p_quotas[j] <= 0 THEN 0
                        WHEN p_units[j] = 0 THEN p_hits[i]
                        ELSE greatest(0, p_quotas[j] - coalesce(sum(r.count)::bigint, 0)) / p_units[j]
                   END
              INTO at, starts, counts, v_newest, v_fit
              FROM (SELECT (date_part('epoch', w.window_start) * 1e6)::bigint AS us, w.count
                      FROM rate_limit_windows AS w
                     WHERE w.key = p_keys[j]
                       AND w.window_start > to_timestamp((v_now - p_spans[j] - p_segments[j]) / 1e6::float8)
                       AND w.window_start <= to_timestamp((v_now + p_spans[j] + p_segments[j]) / 1e6::float8)
                     ORDER BY w.window_start DESC
                     LIMIT p_rows[j]) AS r;
            RETURN NEXT;
            v_fits[j] := v_fit;
            v_new[j] := v_newest;
            IF NOT p_shadow[j] AND p_kinds[i] <> 2 THEN
                admitted := least(admitted, v_fit);
            END IF;
        END LOOP;

        starts := NULL;
        counts := NULL;
        FOR j IN v_last - p_sizes[i] + 1 .. v_last LOOP
            at := NULL;
            passed := least(admitted, v_fits[j]);
            IF p_kinds[i] = 0 AND passed * p_units[j] > 0 THEN
                at := v_now - v_now % p_segments[j];
                IF p_rows[j] = 1 AND v_new[j] IS DISTINCT FROM at THEN
                    -- A fixed window never goes back to an earlier one, and a new one begins without what a clock that
                    -- was far ahead has left behind.
                    at := greatest(at, v_new[j]);
                    DELETE FROM rate_limit_windows AS w
                     WHERE w.key = p_keys[j]
                       AND w.window_start > to_timestamp((v_now + p_spans[j] + p_segments[j]) / 1e6::float8);
                END IF;
                INSERT INTO rate_limit_windows AS w (key, window_start, count, expires_at)
                VALUES (p_keys[j], to_timestamp(at / 1e6::float8), passed * p_units[j],
                        to_timestamp((at + p_segments[j] + p_spans[j] + 60000000) / 1e6::float8))
                ON CONFLICT (key, window_start) DO UPDATE
                   SET count = w.count + excluded.count,
                       expires_at = greatest(w.expires_at, excluded.expires_at);
            ELSIF p_kinds[i] = 2 THEN
                -- The oldest live rows first; of a fixed window only the newest is live.
                v_units := p_units[j];
                FOR v_row IN
                    SELECT w.window_start, w.count
                      FROM rate_limit_windows AS w
                     WHERE w.key = p_keys[j]
                       AND w.window_start > to_timestamp((v_now - p_spans[j] - p_segments[j]) / 1e6::float8)
                       AND w.window_start <= to_timestamp(v_new[j] / 1e6::float8)
                       AND (p_rows[j] > 1 OR w.window_start = to_timestamp(v_new[j] / 1e6::float8))
                     ORDER BY w.window_start
                LOOP
                    EXIT WHEN v_units = 0;
                    v_taken := least(v_units, v_row.count);
                    UPDATE rate_limit_windows AS w
                       SET count = w.count - v_taken
                     WHERE w.key = p_keys[j] AND w.window_start = v_row.window_start;
                    v_units := v_units - v_taken;
                END LOOP;
            END IF;
            RETURN NEXT;
        END LOOP;
    END LOOP;
END
$$;
