DROP FUNCTION rate_limit_raise(bigint, text, integer[], text[], bigint[], bigint[], integer[], bigint[], bigint[], bigint[], bigint[]);
