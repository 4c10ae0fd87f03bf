-- What replicas tell each other when Redis cannot carry it. It lives for seconds and may be lost, so it is not logged.
CREATE UNLOGGED TABLE IF NOT EXISTS usage_reports (
    instance    uuid        PRIMARY KEY,
    reported_at timestamptz NOT NULL,
    report      bytea       NOT NULL
) WITH (fillfactor = 50);
ALTER TABLE usage_reports ALTER COLUMN report SET STORAGE EXTERNAL;

-- Every run of a replica writes its own rows, as totals of the minute: writing one twice changes nothing.
-- kind: 0 all of a tenant (tenant 0: what no tenant pays for), 1 a limit, 2 a user, 3 a key, 4 everything (tenant 0).
-- Tenants are not referenced: history may outlive them until its retention ends.
CREATE TABLE IF NOT EXISTS usage_minutes (
    tenant_id bigint      NOT NULL,
    kind      smallint    NOT NULL,
    at        timestamptz NOT NULL,
    name      text        NOT NULL,
    instance  uuid        NOT NULL,
    admitted  bigint      NOT NULL,
    slowed    bigint      NOT NULL,
    refused   bigint      NOT NULL,
    exempt    bigint      NOT NULL,
    units     bigint      NOT NULL,
    peak      real        NOT NULL,
    PRIMARY KEY (tenant_id, kind, at, name, instance)
) WITH (fillfactor = 80);
CREATE INDEX IF NOT EXISTS usage_minutes_at ON usage_minutes USING brin (at) WITH (pages_per_range = 16);

CREATE TABLE IF NOT EXISTS usage_hours (
    tenant_id bigint      NOT NULL,
    kind      smallint    NOT NULL,
    at        timestamptz NOT NULL,
    name      text        NOT NULL,
    admitted  bigint      NOT NULL,
    slowed    bigint      NOT NULL,
    refused   bigint      NOT NULL,
    exempt    bigint      NOT NULL,
    units     bigint      NOT NULL,
    peak      real        NOT NULL,
    PRIMARY KEY (tenant_id, kind, at, name)
);
CREATE INDEX IF NOT EXISTS usage_hours_at ON usage_hours USING brin (at) WITH (pages_per_range = 16);

CREATE TABLE IF NOT EXISTS usage_days (LIKE usage_hours INCLUDING ALL);

-- How far history is rolled up (everything before rolled_to is in the coarser table) and removed (nothing before pruned_to is
-- complete any more).
CREATE TABLE IF NOT EXISTS usage_marks (
    step      text        PRIMARY KEY CHECK (step IN ('minute', 'hour', 'day')),
    rolled_to timestamptz NOT NULL,
    pruned_to timestamptz NOT NULL DEFAULT '-infinity'
);
INSERT INTO usage_marks (step, rolled_to) VALUES
    ('minute', date_bin('1 hour', now(), 'epoch')),
    ('hour', date_bin('1 day', now(), 'epoch')),
    ('day', 'infinity')
ON CONFLICT DO NOTHING;

-- Hours that got minutes after they had been rolled up.
CREATE TABLE IF NOT EXISTS usage_late (
    hour timestamptz PRIMARY KEY
);
