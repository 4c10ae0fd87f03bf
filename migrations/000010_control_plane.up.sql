-- When an override last decided; written lazily, like the last use of credentials.
ALTER TABLE overrides ADD COLUMN last_used_at timestamptz;

-- The audit log is listed and exported by time, newest first, from any moment on and by any filter, without sorting: each
-- index ends in the order of the list.
DROP INDEX audit_log_at, audit_log_actor_id, audit_log_actor_name, audit_log_action, audit_log_resource;
CREATE INDEX audit_log_at ON audit_log (at, id);
CREATE INDEX audit_log_actor_id ON audit_log (actor_id, at, id);
CREATE INDEX audit_log_actor_name ON audit_log (actor_name, at, id);
CREATE INDEX audit_log_action ON audit_log (action, at, id);
CREATE INDEX audit_log_resource ON audit_log (resource, at, id);
CREATE INDEX audit_log_resource_id ON audit_log (resource_id, at, id);

-- Append-only also in a session that switches ordinary triggers off (session_replication_role), and by privilege for a role that
-- is no superuser, the owner included. Whoever owns the table can still give himself the privilege or drop it: run Pegel as a
-- role that does not own its tables where that matters (docs/operations.md).
ALTER TABLE audit_log ENABLE ALWAYS TRIGGER audit_log_append_only;
REVOKE UPDATE, DELETE, TRUNCATE ON audit_log FROM PUBLIC, CURRENT_USER;
