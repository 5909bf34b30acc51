-- name: outbox.status -> rows
-- Waiting now, waiting for later, claimed, failed at least once, dead, seconds the oldest due row has waited.
SELECT count(*) FILTER (WHERE owner IS NULL AND due <= c.now),
       count(*) FILTER (WHERE owner IS NULL AND due > c.now),
       count(*) FILTER (WHERE owner IS NOT NULL),
       count(*) FILTER (WHERE attempts > CASE WHEN owner IS NULL THEN 0 ELSE 1 END),
       (SELECT count(*) FROM {dead}),
       coalesce(extract(epoch FROM max(c.now) - min(due) FILTER (WHERE due <= c.now)), 0)::float8
FROM {pending}, (SELECT coalesce(:now, clock_timestamp()) AS now) c

-- name: outbox.status.events -> rows
-- An estimate: counting ten million finished rows is not worth a status line.
SELECT greatest(reltuples, 0)::bigint FROM pg_class
WHERE oid = to_regclass('{event}')

-- name: outbox.status.notify -> rows
SELECT pg_notify('{channel}', '')
