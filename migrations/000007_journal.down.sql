DROP FUNCTION journal_drop_partition(text, timestamptz);
DROP FUNCTION journal_make_partition(text, timestamptz, interval);
DROP FUNCTION journal_id(timestamptz);
DROP TABLE journal_gaps;
DROP TABLE journal_writers;
DROP TABLE decisions;
DROP TABLE request_log;
