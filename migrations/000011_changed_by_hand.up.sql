-- Rows that were edited by hand act on all replicas within a second, as changes by the service do: an edit that is not one of the
-- service's own raises the configuration version and has every replica load everything anew. The version is raised before a row is
-- touched, in the order of the service's changes, so an edit waits for those and never deadlocks with them.

-- The service marks its transactions by pegel.change; the first statement by hand marks its own, so that a transaction is one version.
CREATE FUNCTION config_changed_by_hand() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF coalesce(current_setting('pegel.change', true), '') = '' THEN
        UPDATE config_version SET version = version + 1, deletions_since = version + 1, changed_at = now();
        PERFORM set_config('pegel.change', 'by hand', true);
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION config_mode_changed_by_hand() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(current_setting('pegel.change', true), '') = '' THEN
        NEW.version := OLD.version + 1;
        NEW.deletions_since := NEW.version;
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER changed_by_hand BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON plans
    FOR EACH STATEMENT EXECUTE FUNCTION config_changed_by_hand();
CREATE TRIGGER changed_by_hand BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON limits
    FOR EACH STATEMENT EXECUTE FUNCTION config_changed_by_hand();
CREATE TRIGGER changed_by_hand BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON address_policy
    FOR EACH STATEMENT EXECUTE FUNCTION config_changed_by_hand();
CREATE TRIGGER changed_by_hand BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON address_limits
    FOR EACH STATEMENT EXECUTE FUNCTION config_changed_by_hand();
CREATE TRIGGER changed_by_hand BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON tenants
    FOR EACH STATEMENT EXECUTE FUNCTION config_changed_by_hand();
CREATE TRIGGER changed_by_hand BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON networks
    FOR EACH STATEMENT EXECUTE FUNCTION config_changed_by_hand();
-- When something was last used is no change.
CREATE TRIGGER changed_by_hand BEFORE INSERT OR DELETE OR TRUNCATE
    OR UPDATE OF tenant_id, limit_name, quota, reason, expires_at, changed_in, updated_at ON overrides
    FOR EACH STATEMENT EXECUTE FUNCTION config_changed_by_hand();
CREATE TRIGGER changed_by_hand BEFORE INSERT OR DELETE OR TRUNCATE
    OR UPDATE OF id, tenant_id, name, hash, created_at, expires_at, revoked_at, changed_in ON api_keys
    FOR EACH STATEMENT EXECUTE FUNCTION config_changed_by_hand();
CREATE TRIGGER changed_by_hand BEFORE INSERT OR DELETE OR TRUNCATE
    OR UPDATE OF id, name, hash, exempt, may, created_at, expires_at, revoked_at, changed_in ON service_tokens
    FOR EACH STATEMENT EXECUTE FUNCTION config_changed_by_hand();
CREATE TRIGGER changed_by_hand BEFORE INSERT OR DELETE OR TRUNCATE
    OR UPDATE OF id, name, role, hash, created_at, expires_at, revoked_at, changed_in ON admin_tokens
    FOR EACH STATEMENT EXECUTE FUNCTION config_changed_by_hand();
CREATE TRIGGER changed_by_hand BEFORE UPDATE OF mode ON config_version
    FOR EACH ROW EXECUTE FUNCTION config_mode_changed_by_hand();
