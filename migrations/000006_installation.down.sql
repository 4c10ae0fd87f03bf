ALTER TABLE config_version DROP COLUMN IF EXISTS installation;
