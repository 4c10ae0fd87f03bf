-- Which tenant an entry of the audit log concerns: an index of the log, beside it, because an entry is never altered and a large log
-- cannot be indexed anew without stopping changes for as long. Entries are found here by the slug they were made under, also when the
-- tenant is gone. Entries from before are added by the next step.
CREATE TABLE audit_tenants (
    audit_id bigint      PRIMARY KEY,
    at       timestamptz NOT NULL,
    tenant   text        COLLATE "C" NOT NULL CHECK (tenant <> '')
);
CREATE INDEX audit_tenants_tenant ON audit_tenants (tenant, at, audit_id);

-- It says what it guards: there are two now.
CREATE OR REPLACE FUNCTION audit_log_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % is forbidden', TG_TABLE_NAME, TG_OP USING ERRCODE = 'insufficient_privilege';
END
$$;
CREATE TRIGGER audit_tenants_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_tenants
    FOR EACH STATEMENT EXECUTE FUNCTION audit_log_is_append_only();
ALTER TABLE audit_tenants ENABLE ALWAYS TRIGGER audit_tenants_append_only;
REVOKE UPDATE, DELETE, TRUNCATE ON audit_tenants FROM PUBLIC, CURRENT_USER;

-- Whoever writes an entry, the previous release included, has its tenant noted. It runs as the owner, so that writers need no more
-- than INSERT on the log. A key's entry names the tenant where it is made; where it ends, the key is still there.
CREATE FUNCTION audit_note_tenant() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    v_tenant text;
BEGIN
    CASE NEW.resource
    WHEN 'tenant' THEN
        v_tenant := NEW.resource_id;
    WHEN 'override' THEN
        v_tenant := split_part(NEW.resource_id, '/', 1);
    WHEN 'api_key' THEN
        v_tenant := jsonb_path_query_first(NEW.diff, 'lax $[*] ? (@.field == "tenant").to') #>> '{}';
        IF v_tenant IS NULL THEN
            SELECT t.slug INTO v_tenant FROM api_keys AS k JOIN tenants AS t ON t.id = k.tenant_id WHERE k.id = NEW.resource_id;
        END IF;
    WHEN 'alert' THEN
        IF NEW.resource_id ~ '^[0-9]{1,18}$' THEN
            SELECT i.tenant INTO v_tenant FROM incidents AS i WHERE i.id = NEW.resource_id::bigint;
        END IF;
    ELSE
        NULL;
    END CASE;
    IF v_tenant <> '' THEN
        INSERT INTO audit_tenants (audit_id, at, tenant) VALUES (NEW.id, NEW.at, v_tenant);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER audit_log_note_tenant AFTER INSERT ON audit_log
    FOR EACH ROW EXECUTE FUNCTION audit_note_tenant();
