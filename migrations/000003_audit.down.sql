DROP TABLE idempotency_keys, audit_log;
DROP FUNCTION audit_log_is_append_only();
