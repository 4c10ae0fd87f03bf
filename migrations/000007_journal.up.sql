-- What was decided: the request log and explanations. internal/journal writes both through internal/postgres.
--
-- Both are keyed by UUIDv7, which sort by time, and partitioned by them, so that a look-up by id touches one partition, the newest rows
-- come first without sorting, and what is old goes by dropping a partition. Partitions are made ahead by the replicas
-- (journal_make_partition); there is none for rows that nobody expected, because such a one would keep others from being made.
CREATE TABLE request_log (
    id          uuid        NOT NULL,
    at          timestamptz NOT NULL,
    decision_id uuid,
    count       bigint      NOT NULL,
    decision    text        COLLATE "C" NOT NULL,
    shadow      boolean     NOT NULL,
    reason      text        COLLATE "C" NOT NULL,
    tenant      text        COLLATE "C" NOT NULL,
    plan        text        COLLATE "C" NOT NULL,
    user_id     text        COLLATE "C" NOT NULL,
    key_id      text        COLLATE "C" NOT NULL,
    address     text        COLLATE "C" NOT NULL,
    service     text        COLLATE "C" NOT NULL,
    method      text        COLLATE "C" NOT NULL,
    path        text        COLLATE "C" NOT NULL,
    door        text        COLLATE "C" NOT NULL,
    limit_name  text        COLLATE "C" NOT NULL,
    used        bigint      NOT NULL,
    quota       bigint      NOT NULL,
    cost        bigint      NOT NULL,
    delay_ms    bigint      NOT NULL,
    source      text        COLLATE "C" NOT NULL,
    replica     text        COLLATE "C" NOT NULL,
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);

-- Each filter has an index that ends in the order of the list.
CREATE INDEX request_log_tenant ON request_log (tenant, id);
-- What is asked for most: the few refusals among all that a large tenant did. One expression, because a scan over a range of
-- (tenant, decision, id) goes on until the tenant changes.
CREATE INDEX request_log_tenant_decision ON request_log ((tenant || ' ' || decision), id);
CREATE INDEX request_log_address ON request_log (address, id);
CREATE INDEX request_log_decision ON request_log (decision, id);
CREATE INDEX request_log_door ON request_log (door, id);
CREATE INDEX request_log_limit_name ON request_log (limit_name, id);
CREATE INDEX request_log_decision_id ON request_log (decision_id, id);

COMMENT ON TABLE request_log IS 'What became of calls, as the plan''s request_log says; one row may stand for several equal calls (count).';

CREATE TABLE decisions (
    id      uuid        NOT NULL PRIMARY KEY,
    at      timestamptz NOT NULL,
    last_at timestamptz NOT NULL,
    count   bigint      NOT NULL,
    body    jsonb       NOT NULL
) PARTITION BY RANGE (id);

COMMENT ON TABLE decisions IS 'Why decisions fell as they did, for a day.';

-- The last batch each process has written: a batch of unknown outcome is sent again and must not be written twice.
CREATE TABLE journal_writers (
    writer     uuid        PRIMARY KEY,
    batch      bigint      NOT NULL,
    written_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

-- What could not be written.
CREATE TABLE journal_gaps (
    id        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    replica   text        NOT NULL,
    since     timestamptz NOT NULL,
    until     timestamptz NOT NULL,
    requests  bigint      NOT NULL,
    decisions bigint      NOT NULL
);
CREATE INDEX journal_gaps_until ON journal_gaps (until);

-- The smallest UUIDv7 of a moment, to the millisecond.
CREATE FUNCTION journal_id(p_at timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT
RETURN (lpad(to_hex(greatest(0, floor(extract(epoch FROM p_at) * 1000))::bigint), 12, '0') || '00000000000000000000')::uuid;

-- Makes the partition that p_at falls into, unless it is there. Partitions start at multiples of p_span since 1970, in UTC.
-- It runs as the owner of the tables, so that Pegel need not own them. Replicas may call it together.
CREATE FUNCTION journal_make_partition(p_table text, p_at timestamptz, p_span interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    v_seconds bigint := extract(epoch FROM p_span)::bigint;
    v_from    timestamptz := to_timestamp(floor(extract(epoch FROM p_at) / v_seconds) * v_seconds);
    v_name    text := p_table || '_' || to_char(v_from AT TIME ZONE 'UTC', 'YYYYMMDD_HH24');
BEGIN
    IF p_table NOT IN ('request_log', 'decisions') THEN
        RAISE EXCEPTION 'journal_make_partition: % is not partitioned', p_table;
    END IF;
    IF to_regclass(quote_ident(v_name)) IS NOT NULL THEN
        RETURN;
    END IF;
    -- The new partition locks its parent for a moment. Nobody may queue behind us for longer than that.
    PERFORM set_config('lock_timeout', '2s', true);
    PERFORM pg_advisory_xact_lock(1346717514);  -- "PEGJ"
    EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L)',
                   v_name, p_table, journal_id(v_from), journal_id(v_from + p_span));
EXCEPTION WHEN duplicate_table THEN
    NULL;  -- another replica was faster
END
$$;

-- Drops the oldest partition if all of it is from before p_before, and says whether it did. One partition at a time, so that the
-- parent is locked for moments only; a reader in the way makes it fail soon, and the next call tries again.
CREATE FUNCTION journal_drop_partition(p_table text, p_before timestamptz) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    v_name text;
BEGIN
    IF p_table NOT IN ('request_log', 'decisions') THEN
        RAISE EXCEPTION 'journal_drop_partition: % is not partitioned', p_table;
    END IF;
    PERFORM set_config('lock_timeout', '500ms', true);
    PERFORM pg_advisory_xact_lock(1346717514);
    SELECT c.relname INTO v_name
      FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
     WHERE i.inhparent = p_table::regclass
       AND substring(pg_get_expr(c.relpartbound, c.oid) FROM $re$TO \('([0-9a-f-]+)'\)$re$)::uuid <= journal_id(p_before)
     ORDER BY c.relname
     LIMIT 1;
    IF v_name IS NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE %I', v_name);
    RETURN true;
END
$$;

-- Not for anybody who can reach the database: what they do, they do as the owner.
REVOKE EXECUTE ON FUNCTION journal_make_partition(text, timestamptz, interval), journal_drop_partition(text, timestamptz) FROM PUBLIC;
