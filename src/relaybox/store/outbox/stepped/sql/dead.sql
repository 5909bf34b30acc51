-- name: outbox.dead.pick -> rows
SELECT t.seq FROM {dead_rows} WHERE {these} AND (:cutoff IS NULL OR t.dead_at <= :cutoff) {for_update}

-- name: outbox.dead.replay -> count
-- Back to the queue with fresh attempts; the old error stays readable until the next outcome.
INSERT INTO {pending} (seq, due, key_hash, attempts, last_error, since, tenant)
SELECT t.seq, {clock}, {greatest}(t.key_hash, 0), 0, t.last_error, {clock}, coalesce((SELECT e.tenant_id FROM {event} e WHERE e.seq = t.seq), '')
FROM {dead_rows} WHERE {these}
{once}
