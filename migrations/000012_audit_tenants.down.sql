DROP TRIGGER audit_log_note_tenant ON audit_log;
DROP FUNCTION audit_note_tenant();
DROP TABLE audit_tenants;
CREATE OR REPLACE FUNCTION audit_log_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'audit_log is append-only: % is forbidden', TG_OP USING ERRCODE = 'insufficient_privilege';
END
$$;
