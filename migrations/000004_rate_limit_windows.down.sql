DROP FUNCTION rate_limit_decide(
    bigint, text, integer[], integer[], bigint[], integer[], text[], bigint[], bigint[], bigint[], bigint[], integer[], boolean[]);
DROP TABLE rate_limit_windows;
