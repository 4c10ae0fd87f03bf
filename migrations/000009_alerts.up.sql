-- What has been wrong for long enough, over all replicas. See internal/alert.
CREATE TABLE incidents (
    id          bigint           GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind        text             NOT NULL CHECK (kind <> ''),
    subject     text             NOT NULL CHECK (octet_length(subject) <= 1024),
    tenant      text             NOT NULL DEFAULT '', -- slug, for lists; '' when it is about none
    facts       jsonb            NOT NULL,
    since       timestamptz      NOT NULL,
    opened_at   timestamptz      NOT NULL,
    resolved_at timestamptz,
    value       double precision NOT NULL,
    peak        double precision NOT NULL,
    acked_at    timestamptz,
    acked_by    text             NOT NULL DEFAULT '' CHECK (octet_length(acked_by) <= 1024),
    remind_at   timestamptz,
    reminders   integer          NOT NULL DEFAULT 0
);
-- Whatever happens, at most one incident of a subject is open.
CREATE UNIQUE INDEX incidents_open ON incidents (kind, subject) WHERE resolved_at IS NULL;
CREATE INDEX incidents_resolved_at ON incidents (resolved_at) WHERE resolved_at IS NOT NULL;
CREATE INDEX incidents_tenant ON incidents (tenant, id);
CREATE INDEX incidents_kind ON incidents (kind, id);

-- Messages on their way, and what became of them.
CREATE TABLE outbox (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    incident_id  bigint      NOT NULL REFERENCES incidents (id) ON DELETE CASCADE,
    channel      text        NOT NULL CHECK (channel <> ''),
    occasion     text        NOT NULL CHECK (occasion <> ''),
    recipient    text        NOT NULL DEFAULT '',
    notice       jsonb       NOT NULL,
    message_id   uuid        NOT NULL DEFAULT gen_random_uuid(),
    created_at   timestamptz NOT NULL,
    due_at       timestamptz NOT NULL,
    attempts     integer     NOT NULL DEFAULT 0,
    unsure       integer     NOT NULL DEFAULT 0, -- attempts of which nobody knows whether they got through
    batch        bigint,                         -- id of the first message of the digest it is told in; NULL before the first attempt
    worker       text        NOT NULL DEFAULT '',
    leased_until timestamptz,
    done_at      timestamptz,
    sent         boolean     NOT NULL DEFAULT false,
    error        text        NOT NULL DEFAULT '' CHECK (octet_length(error) <= 1024)
);
CREATE INDEX outbox_waiting ON outbox (channel, id) WHERE done_at IS NULL;
CREATE INDEX outbox_incident ON outbox (incident_id, id);

-- What is remembered of every subject that is high, from one look to the next.
CREATE TABLE alert_states (
    kind        text             NOT NULL,
    subject     text             NOT NULL CHECK (octet_length(subject) <= 1024),
    value       double precision NOT NULL,
    seen_at     timestamptz      NOT NULL,
    as_of       timestamptz      NOT NULL,
    high_since  timestamptz,
    high_at     timestamptz,
    peak        double precision NOT NULL,
    open        boolean          NOT NULL,
    quiet_since timestamptz,
    PRIMARY KEY (kind, subject)
);

-- One row: its lock makes judgements come one after another.
CREATE TABLE alert_judgement (
    one       boolean     PRIMARY KEY DEFAULT true CHECK (one),
    judged_at timestamptz
);
INSERT INTO alert_judgement DEFAULT VALUES;

-- How each replica sees its stores, as it last said.
CREATE TABLE alert_replicas (
    instance text        PRIMARY KEY CHECK (octet_length(instance) <= 1024),
    name     text        NOT NULL,
    source   text        NOT NULL,
    redis    text        NOT NULL,
    postgres text        NOT NULL,
    seen_at  timestamptz NOT NULL
);
