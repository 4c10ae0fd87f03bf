-- What an operator configures. Every row carries the configuration version that last touched it (changed_in), indexed, so
-- that a replica loads only what changed since the version it holds. Durations are whole milliseconds.
--
-- The CHECKs repeat what the API validates. They are a second fence, not the only one: whoever reads these tables survives
-- rows that break them.

-- One row. Every change locks it first, so versions become visible in the order they were given and none is ever missed.
CREATE TABLE config_version (
    singleton             boolean     PRIMARY KEY DEFAULT true CHECK (singleton),
    version               bigint      NOT NULL DEFAULT 1,
    -- Deletions after this version are all in config_deletions; a replica that is further behind loads everything.
    deletions_since       bigint      NOT NULL DEFAULT 0,
    mode                  text        CHECK (mode IN ('enforce', 'shadow')), -- NULL: nobody has set it
    mode_changed_in       bigint      NOT NULL DEFAULT 0,
    defaults_installed_at timestamptz,
    changed_at            timestamptz NOT NULL DEFAULT now()
);
INSERT INTO config_version DEFAULT VALUES;

CREATE TABLE config_deletions (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind       text        NOT NULL CHECK (kind IN ('plan', 'tenant', 'override', 'network')),
    object_id  bigint      NOT NULL, -- of an override: its tenant
    limit_name text        NOT NULL DEFAULT '',
    changed_in bigint      NOT NULL,
    deleted_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX config_deletions_changed_in ON config_deletions (changed_in);
CREATE INDEX config_deletions_deleted_at ON config_deletions (deleted_at);

CREATE TABLE plans (
    id           bigint           GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name         text             COLLATE "C" NOT NULL CONSTRAINT plans_name_key UNIQUE CHECK (name ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    title        text             NOT NULL DEFAULT '' CHECK (char_length(title) <= 200),
    alert_at     double precision NOT NULL DEFAULT 0.8 CHECK (alert_at > 0 AND alert_at <= 1),
    alert_for_ms bigint           NOT NULL DEFAULT 600000 CHECK (alert_for_ms BETWEEN 1000 AND 86400000),
    request_log  text             NOT NULL DEFAULT 'denied' CHECK (request_log IN ('off', 'denied', 'allowed', 'sampled', 'all')),
    version      bigint           NOT NULL DEFAULT 1,
    changed_in   bigint           NOT NULL,
    created_at   timestamptz      NOT NULL DEFAULT now(),
    updated_at   timestamptz      NOT NULL DEFAULT now()
);
CREATE INDEX plans_changed_in ON plans (changed_in);

-- The limits of the plans, replaced as a whole with their plan, whose changed_in is theirs.
CREATE TABLE limits (
    plan_id                bigint   NOT NULL REFERENCES plans (id) ON DELETE CASCADE,
    position               integer  NOT NULL CHECK (position >= 0),
    name                   text     COLLATE "C" NOT NULL CHECK (char_length(name) BETWEEN 1 AND 64),
    scope                  text     NOT NULL CHECK (scope IN ('tenant', 'user', 'key')),
    algorithm              text     NOT NULL CHECK (algorithm IN ('sliding_window_log', 'sliding_window_counter', 'fixed_window', 'token_bucket', 'leaky_bucket')),
    quota                  bigint   NOT NULL CHECK (quota BETWEEN 0 AND 1000000000000),
    window_ms              bigint   CHECK (window_ms BETWEEN 1000 AND 31622400000),
    refill_units           bigint   CHECK (refill_units BETWEEN 1 AND 1000000000000),
    refill_every_ms        bigint   CHECK (refill_every_ms BETWEEN 1 AND 31622400000),
    cost                   bigint   NOT NULL DEFAULT 1 CHECK (cost BETWEEN 1 AND 1000000),
    slowdown_from          double precision CHECK (slowdown_from >= 0 AND slowdown_from < 1),
    slowdown_max_delay_ms  bigint   CHECK (slowdown_max_delay_ms BETWEEN 1 AND 60000),
    on_store_failure       text     NOT NULL DEFAULT 'open' CHECK (on_store_failure IN ('open', 'closed', 'local')),
    mode                   text     NOT NULL DEFAULT 'enforce' CHECK (mode IN ('enforce', 'shadow')),
    match_methods          text[]   NOT NULL DEFAULT '{}',
    match_paths            text[]   NOT NULL DEFAULT '{}',
    PRIMARY KEY (plan_id, position),
    CONSTRAINT limits_plan_id_name_key UNIQUE (plan_id, name),
    CONSTRAINT limits_window_or_refill CHECK (
        CASE WHEN algorithm IN ('token_bucket', 'leaky_bucket')
            THEN window_ms IS NULL AND refill_units IS NOT NULL AND refill_every_ms IS NOT NULL
            ELSE window_ms IS NOT NULL AND refill_units IS NULL AND refill_every_ms IS NULL END),
    CONSTRAINT limits_slowdown CHECK ((slowdown_from IS NULL) = (slowdown_max_delay_ms IS NULL))
);

-- The address policy: one row, its limits beside it.
CREATE TABLE address_policy (
    singleton  boolean     PRIMARY KEY DEFAULT true CHECK (singleton),
    version    bigint      NOT NULL DEFAULT 1,
    changed_in bigint      NOT NULL DEFAULT 0,
    updated_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO address_policy DEFAULT VALUES;

CREATE TABLE address_limits (
    position               integer  PRIMARY KEY CHECK (position >= 0),
    name                   text     COLLATE "C" NOT NULL CONSTRAINT address_limits_name_key UNIQUE CHECK (char_length(name) BETWEEN 1 AND 64),
    applies_to             text     NOT NULL DEFAULT 'anonymous' CHECK (applies_to IN ('anonymous', 'all')),
    algorithm              text     NOT NULL CHECK (algorithm IN ('sliding_window_log', 'sliding_window_counter', 'fixed_window', 'token_bucket', 'leaky_bucket')),
    quota                  bigint   NOT NULL CHECK (quota BETWEEN 0 AND 1000000000000),
    window_ms              bigint   CHECK (window_ms BETWEEN 1000 AND 31622400000),
    refill_units           bigint   CHECK (refill_units BETWEEN 1 AND 1000000000000),
    refill_every_ms        bigint   CHECK (refill_every_ms BETWEEN 1 AND 31622400000),
    cost                   bigint   NOT NULL DEFAULT 1 CHECK (cost BETWEEN 1 AND 1000000),
    slowdown_from          double precision CHECK (slowdown_from >= 0 AND slowdown_from < 1),
    slowdown_max_delay_ms  bigint   CHECK (slowdown_max_delay_ms BETWEEN 1 AND 60000),
    on_store_failure       text     NOT NULL DEFAULT 'open' CHECK (on_store_failure IN ('open', 'closed', 'local')),
    mode                   text     NOT NULL DEFAULT 'enforce' CHECK (mode IN ('enforce', 'shadow')),
    match_methods          text[]   NOT NULL DEFAULT '{}',
    match_paths            text[]   NOT NULL DEFAULT '{}',
    CONSTRAINT address_limits_window_or_refill CHECK (
        CASE WHEN algorithm IN ('token_bucket', 'leaky_bucket')
            THEN window_ms IS NULL AND refill_units IS NOT NULL AND refill_every_ms IS NOT NULL
            ELSE window_ms IS NOT NULL AND refill_units IS NULL AND refill_every_ms IS NULL END),
    CONSTRAINT address_limits_slowdown CHECK ((slowdown_from IS NULL) = (slowdown_max_delay_ms IS NULL))
);

CREATE TABLE tenants (
    id            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    slug          text        COLLATE "C" NOT NULL CONSTRAINT tenants_slug_key UNIQUE CHECK (slug ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    name          text        NOT NULL CHECK (char_length(name) BETWEEN 1 AND 200),
    plan_id       bigint      NOT NULL CONSTRAINT tenants_plan_id_fkey REFERENCES plans (id) ON DELETE RESTRICT,
    status        text        NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'suspended')),
    contact_email text        NOT NULL DEFAULT '' CHECK (char_length(contact_email) <= 254),
    metadata      jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(metadata) = 'object'),
    generation    bigint      NOT NULL DEFAULT 0, -- rises with every reset of the tenant's counters
    version       bigint      NOT NULL DEFAULT 1,
    changed_in    bigint      NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX tenants_changed_in ON tenants (changed_in);
CREATE INDEX tenants_plan_id ON tenants (plan_id);

CREATE TABLE overrides (
    tenant_id  bigint      NOT NULL REFERENCES tenants (id) ON DELETE CASCADE,
    limit_name text        COLLATE "C" NOT NULL CHECK (char_length(limit_name) BETWEEN 1 AND 64),
    quota      bigint      NOT NULL CHECK (quota BETWEEN 0 AND 1000000000000),
    reason     text        NOT NULL CHECK (char_length(reason) BETWEEN 1 AND 500),
    expires_at timestamptz,
    changed_in bigint      NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, limit_name)
);
CREATE INDEX overrides_changed_in ON overrides (changed_in);

CREATE TABLE networks (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cidr       cidr        NOT NULL,
    action     text        NOT NULL CHECK (action IN ('deny', 'allow')),
    reason     text        NOT NULL DEFAULT '' CHECK (char_length(reason) <= 500),
    expires_at timestamptz,
    changed_in bigint      NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT networks_cidr_action_key UNIQUE (cidr, action)
);
CREATE INDEX networks_changed_in ON networks (changed_in);
