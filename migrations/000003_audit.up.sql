-- Who changed what: written in the transaction of the change, never altered afterwards.
CREATE TABLE audit_log (
    id            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor_kind    text        NOT NULL CHECK (actor_kind <> ''),
    actor_id      text        NOT NULL DEFAULT '',
    actor_name    text        NOT NULL CHECK (actor_name <> '' AND octet_length(actor_name) <= 1024),
    actor_address text        NOT NULL DEFAULT '',
    request_id    text        NOT NULL DEFAULT '',
    action        text        NOT NULL CHECK (action <> ''),
    resource      text        NOT NULL CHECK (resource <> ''),
    resource_id   text        NOT NULL DEFAULT '' CHECK (octet_length(resource_id) <= 1024),
    diff          jsonb       NOT NULL DEFAULT '[]'
);
-- Lists are filtered by these and run from the newest entry down.
CREATE INDEX audit_log_at ON audit_log (at);
CREATE INDEX audit_log_actor_id ON audit_log (actor_id, id);
CREATE INDEX audit_log_actor_name ON audit_log (actor_name, id);
CREATE INDEX audit_log_action ON audit_log (action, id);
CREATE INDEX audit_log_resource ON audit_log (resource, resource_id, id);

CREATE FUNCTION audit_log_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'audit_log is append-only: % is forbidden', TG_OP USING ERRCODE = 'insufficient_privilege';
END
$$;
CREATE TRIGGER audit_log_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION audit_log_is_append_only();

-- The answer an Idempotency-Key got, for 24 hours. The key is stored as its SHA-256, so that any key fits the index.
CREATE TABLE idempotency_keys (
    key_hash     bytea       PRIMARY KEY CHECK (octet_length(key_hash) = 32),
    request_hash bytea       NOT NULL CHECK (octet_length(request_hash) = 32),
    status       integer     NOT NULL DEFAULT 0,
    body         bytea       NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX idempotency_keys_created_at ON idempotency_keys (created_at);
