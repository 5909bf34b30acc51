-- name: inbox.status -> rows
SELECT (SELECT count(*) FROM {pending}), (SELECT count(*) FROM {seen})

-- name: inbox.status.read_only -> rows
-- A file that cannot be written refuses BEGIN IMMEDIATE already.
SELECT 0
