-- Credentials, looked up by their public id. Only the SHA-256 of the secret is stored. seq is the order of creation.

CREATE TABLE api_keys (
    seq          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id           text        COLLATE "C" NOT NULL CONSTRAINT api_keys_id_key UNIQUE CHECK (id ~ '^[0-9A-Za-z]{1,32}$'),
    tenant_id    bigint      NOT NULL REFERENCES tenants (id) ON DELETE CASCADE,
    name         text        NOT NULL CHECK (char_length(name) BETWEEN 1 AND 200),
    hash         bytea       NOT NULL CHECK (octet_length(hash) = 32),
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz,
    changed_in   bigint      NOT NULL
);
CREATE INDEX api_keys_tenant_id ON api_keys (tenant_id, seq);
CREATE INDEX api_keys_changed_in ON api_keys (changed_in);

CREATE TABLE service_tokens (
    seq          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id           text        COLLATE "C" NOT NULL CONSTRAINT service_tokens_id_key UNIQUE CHECK (id ~ '^[0-9A-Za-z]{1,32}$'),
    name         text        NOT NULL CHECK (char_length(name) BETWEEN 1 AND 200),
    hash         bytea       NOT NULL CHECK (octet_length(hash) = 32),
    exempt       text[]      NOT NULL DEFAULT '{}' CHECK (exempt <@ ARRAY['address']),
    may          text[]      NOT NULL DEFAULT '{}' CHECK (may <@ ARRAY['check', 'status', 'refund', 'identify']),
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz,
    changed_in   bigint      NOT NULL
);
CREATE INDEX service_tokens_changed_in ON service_tokens (changed_in);

CREATE TABLE admin_tokens (
    seq          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id           text        COLLATE "C" NOT NULL CONSTRAINT admin_tokens_id_key UNIQUE CHECK (id ~ '^[0-9A-Za-z]{1,32}$'),
    name         text        NOT NULL CHECK (char_length(name) BETWEEN 1 AND 200),
    role         text        NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    hash         bytea       NOT NULL CHECK (octet_length(hash) = 32),
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz,
    changed_in   bigint      NOT NULL
);
CREATE INDEX admin_tokens_changed_in ON admin_tokens (changed_in);
