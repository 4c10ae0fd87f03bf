DROP TABLE networks, overrides, tenants, address_limits, address_policy, limits, plans, config_deletions, config_version;
