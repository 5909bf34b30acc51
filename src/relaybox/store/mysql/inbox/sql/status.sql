-- name: inbox.status -> rows
-- Waiting, and ever accepted: counted while that is cheap, then the optimizer's estimate.
SELECT (SELECT count(*) FROM {pending}),
       CASE WHEN c.n <= 10000 THEN c.n
            ELSE (SELECT greatest(table_rows, c.n) FROM information_schema.tables
                  WHERE table_schema = {database} AND table_name = '{seen_name}') END
FROM (SELECT count(*) AS n FROM (SELECT 1 FROM {seen} LIMIT 10001) s) c

-- name: inbox.status.read_only -> rows
SELECT @@global.read_only
