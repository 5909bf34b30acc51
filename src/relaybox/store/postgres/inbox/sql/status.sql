-- name: inbox.status -> rows
-- Waiting, and ever accepted: counted while that is cheap, then the planner's estimate.
SELECT (SELECT count(*) FROM {pending}),
       CASE WHEN n <= 10000 THEN n
            ELSE (SELECT greatest(reltuples, n)::bigint FROM pg_class WHERE oid = to_regclass('{seen}')) END
FROM (SELECT count(*) AS n FROM (SELECT 1 FROM {seen} LIMIT 10001) s) c

-- name: inbox.status.read_only -> rows
SELECT current_setting('transaction_read_only')::boolean
