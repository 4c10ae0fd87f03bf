-- The tenants of the entries from before the step before this one. It only reads the log, so that changes go on meanwhile; what they
-- write is noted by its trigger, and whatever both have seen is there once.
INSERT INTO audit_tenants (audit_id, at, tenant)
SELECT id, at, split_part(resource_id, '/', 1) FROM audit_log
 WHERE resource IN ('tenant', 'override') AND split_part(resource_id, '/', 1) <> ''
ON CONFLICT DO NOTHING;

-- A key that ended does not say whose it was. The entry that made it does, also when its tenant is gone; and so does the key.
WITH named AS MATERIALIZED (
    SELECT id, at, resource_id, jsonb_path_query_first(diff, 'lax $[*] ? (@.field == "tenant").to') #>> '{}' AS tenant
      FROM audit_log WHERE resource = 'api_key'
), made AS (
    SELECT DISTINCT ON (resource_id) resource_id, tenant FROM named WHERE tenant IS NOT NULL ORDER BY resource_id, id
)
INSERT INTO audit_tenants (audit_id, at, tenant)
SELECT e.id, e.at, coalesce(e.tenant, m.tenant, t.slug)
  FROM named AS e
  LEFT JOIN made AS m USING (resource_id)
  LEFT JOIN api_keys AS k ON k.id = e.resource_id
  LEFT JOIN tenants AS t ON t.id = k.tenant_id
 WHERE coalesce(e.tenant, m.tenant, t.slug) <> ''
ON CONFLICT DO NOTHING;

INSERT INTO audit_tenants (audit_id, at, tenant)
SELECT a.id, a.at, i.tenant FROM audit_log AS a JOIN incidents AS i ON i.id::text = a.resource_id
 WHERE a.resource = 'alert' AND i.tenant <> ''
ON CONFLICT DO NOTHING;
