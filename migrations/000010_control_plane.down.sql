GRANT UPDATE, DELETE, TRUNCATE ON audit_log TO CURRENT_USER;
ALTER TABLE audit_log ENABLE TRIGGER audit_log_append_only;
DROP INDEX audit_log_at, audit_log_actor_id, audit_log_actor_name, audit_log_action, audit_log_resource, audit_log_resource_id;
CREATE INDEX audit_log_at ON audit_log (at);
CREATE INDEX audit_log_actor_id ON audit_log (actor_id, id);
CREATE INDEX audit_log_actor_name ON audit_log (actor_name, id);
CREATE INDEX audit_log_action ON audit_log (action, id);
CREATE INDEX audit_log_resource ON audit_log (resource, resource_id, id);
ALTER TABLE overrides DROP COLUMN last_used_at;
