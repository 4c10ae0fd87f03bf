-- The triggers go with their functions.
DROP FUNCTION config_mode_changed_by_hand() CASCADE;
DROP FUNCTION config_changed_by_hand() CASCADE;
