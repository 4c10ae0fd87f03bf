-- What was noted stays: it goes with the table, in the step before.
SELECT;
