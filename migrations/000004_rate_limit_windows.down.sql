DROP FUNCTION rate_limit_decide(
    bigint, integer[], integer[], bigint[], integer[], text[], bigint[], bigint[], bigint[], bigint[], boolean[]);
DROP TABLE rate_limit_windows;
