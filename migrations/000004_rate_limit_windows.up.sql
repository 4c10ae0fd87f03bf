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
--   p_locks     advisory locks to hold, one per counter that may be written, distinct and ascending: all callers take them in
--               one order, and nothing else here waits, so no two calls can deadlock
--   per charge  kind (0 take, 1 peek, 2 refund), hits, number of counters
--   per counter key, quota, units per hit, span, segment length, shadow. span 0 = fixed window: only its newest row counts.
--               For a refund, units are those to give back in all and hits is 1
--
-- Returns one row per counter, in order: the clock, the hits its charge admitted, those of them that this counter let pass, and its live rows
-- after that, oldest first.
--
-- The planner is told what it cannot know: these lookups are by primary key, and a table that was empty when the plan was
-- made may hold a million rows a minute later.
--
-- Replicas of two versions may run side by side: other arguments or another result are another function name.
CREATE FUNCTION rate_limit_decide(
    p_now      bigint,
    p_locks    integer[],
    p_kinds    integer[],
    p_hits     bigint[],
    p_sizes    integer[],
    p_keys     text[],
    p_quotas   bigint[],
    p_units    bigint[],
    p_spans    bigint[],
    p_segments bigint[],
    p_shadow   boolean[]
) RETURNS TABLE (now_us bigint, admitted bigint, passed bigint, starts bigint[], counts bigint[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    v_first   integer;           -- the charge's counters are v_first … v_last of the per-counter arrays
    v_last    integer := 0;
    v_used    bigint;
    v_fit     bigint;
    v_fits    bigint[];          -- per counter of the charge: hits that fit
    v_ends    integer[];         -- per counter of the charge: where its rows end in v_starts and v_counts
    v_starts  bigint[];          -- live rows of all the charge's counters, counter by counter
    v_counts  bigint[];
    v_row_starts bigint[];       -- live rows of one counter
    v_row_counts bigint[];
    v_future  boolean;           -- rows further ahead than any right clock writes them
    v_ahead   boolean;
    v_start   bigint;
    v_units   bigint;
    v_low     integer;
BEGIN
    -- A snapshot older than the locks would read counts from before them.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'rate_limit_decide needs transaction isolation "read committed", not "%"',
            current_setting('transaction_isolation') USING ERRCODE = 'invalid_transaction_state';
    END IF;

    PERFORM pg_advisory_xact_lock(1346717510, l) FROM unnest(p_locks) AS l;  -- 1346717510 is "PEGF"
    now_us := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);

    FOR i IN 1 .. cardinality(p_kinds) LOOP
        v_first := v_last + 1;
        v_last := v_last + p_sizes[i];
        v_fits := '{}';
        v_ends := '{}';
        v_starts := '{}';
        v_counts := '{}';
        v_ahead := false;
        admitted := p_hits[i];

        -- Read and judge every counter before any is written: all or nothing.
        FOR j IN v_first .. v_last LOOP
            SELECT coalesce(array_agg(r.us) FILTER (WHERE r.live), '{}'),
                   coalesce(array_agg(r.count) FILTER (WHERE r.live), '{}'),
                   coalesce(sum(r.count) FILTER (WHERE r.live), 0),
                   coalesce(bool_or(NOT r.live), false)
              INTO v_row_starts, v_row_counts, v_used, v_future
              FROM (SELECT (date_part('epoch', w.window_start) * 1e6)::bigint AS us,
                           w.count,
                           w.window_start <= to_timestamp((now_us + p_spans[j] + p_segments[j]) / 1e6::float8) AS live
                      FROM rate_limit_windows AS w
                     WHERE w.key = p_keys[j]
                       AND w.window_start > to_timestamp((now_us - p_spans[j] - p_segments[j]) / 1e6::float8)
                     ORDER BY w.window_start) AS r;
            IF p_spans[j] = 0 AND cardinality(v_row_counts) > 1 THEN
                v_row_starts := v_row_starts[cardinality(v_row_starts):];
                v_row_counts := v_row_counts[cardinality(v_row_counts):];
                v_used := v_row_counts[1];
            END IF;
            IF p_quotas[j] <= 0 THEN
                v_fit := 0;
            ELSIF p_units[j] = 0 THEN
                v_fit := p_hits[i];
            ELSE
                v_fit := greatest(0, p_quotas[j] - v_used) / p_units[j];
            END IF;
            IF NOT p_shadow[j] AND p_kinds[i] <> 2 THEN
                admitted := least(admitted, v_fit);
            END IF;
            v_ahead := v_ahead OR v_future;
            v_fits := v_fits || v_fit;
            v_starts := v_starts || v_row_starts;
            v_counts := v_counts || v_row_counts;
            v_ends := v_ends || cardinality(v_starts);
        END LOOP;

        v_low := 1;
        FOR j IN v_first .. v_last LOOP
            v_row_starts := v_starts[v_low : v_ends[j - v_first + 1]];
            v_row_counts := v_counts[v_low : v_ends[j - v_first + 1]];
            v_low := v_ends[j - v_first + 1] + 1;
            passed := least(admitted, v_fits[j - v_first + 1]);

            IF p_kinds[i] = 0 THEN
                v_units := passed * p_units[j];
                IF v_units > 0 THEN
                    IF v_ahead THEN
                        DELETE FROM rate_limit_windows AS w
                         WHERE w.key = p_keys[j]
                           AND w.window_start > to_timestamp((now_us + p_spans[j] + p_segments[j]) / 1e6::float8);
                    END IF;
                    -- Never before the newest row: after a backward step of the clock, hits must not expire early.
                    v_start := greatest(now_us - now_us % p_segments[j], v_row_starts[cardinality(v_row_starts)]);
                    INSERT INTO rate_limit_windows AS w (key, window_start, count, expires_at)
                    VALUES (p_keys[j], to_timestamp(v_start / 1e6::float8), v_units,
                            to_timestamp((v_start + p_segments[j] + p_spans[j] + 60000000) / 1e6::float8))
                    ON CONFLICT (key, window_start) DO UPDATE
                       SET count = w.count + excluded.count,
                           expires_at = greatest(w.expires_at, excluded.expires_at);
                    IF v_row_starts[cardinality(v_row_starts)] = v_start THEN
                        v_row_counts[cardinality(v_row_counts)] := v_row_counts[cardinality(v_row_counts)] + v_units;
                    ELSE
                        v_row_starts := v_row_starts || v_start;
                        v_row_counts := v_row_counts || v_units;
                    END IF;
                END IF;
            ELSIF p_kinds[i] = 2 THEN
                v_units := p_units[j];
                FOR k IN 1 .. cardinality(v_row_starts) LOOP
                    EXIT WHEN v_units = 0;
                    v_used := least(v_units, v_row_counts[k]);
                    CONTINUE WHEN v_used = 0;
                    UPDATE rate_limit_windows AS w
                       SET count = w.count - v_used
                     WHERE w.key = p_keys[j] AND w.window_start = to_timestamp(v_row_starts[k] / 1e6::float8);
                    v_row_counts[k] := v_row_counts[k] - v_used;
                    v_units := v_units - v_used;
                END LOOP;
            END IF;

            starts := v_row_starts;
            counts := v_row_counts;
            RETURN NEXT;
        END LOOP;
    END LOOP;
END
$$;
