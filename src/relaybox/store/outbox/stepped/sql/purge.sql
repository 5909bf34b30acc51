-- name: outbox.purge.seen -> rows
-- Old events from :after on, by seq, so dead letters at the front are passed once per run.
SELECT seq FROM {event}
WHERE seq > :after AND coalesce(deliver_at, created_at) < :before ORDER BY seq LIMIT :limit
