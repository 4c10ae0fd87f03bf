-- Part of every counter's identity: a second installation, or a new database, on the same Redis shares no counter.
ALTER TABLE config_version ADD COLUMN IF NOT EXISTS installation uuid NOT NULL DEFAULT gen_random_uuid();
