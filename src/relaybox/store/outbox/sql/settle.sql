-- name: outbox.settle.held -> rows
-- Keys that wait, oldest first, with what they wait for.
SELECT e.aggregate_id, e.event_id, h.parked, h.since,
       coalesce(p.attempts, d.attempts), coalesce(p.last_error, d.last_error)
FROM {hold} h
LEFT JOIN {event} e ON e.seq = h.seq
LEFT JOIN {pending} p ON p.seq = h.seq
LEFT JOIN {dead} d ON d.seq = h.seq
ORDER BY h.since LIMIT :limit

-- name: outbox.settle.unblock -> count
-- An operator's decision: the key goes on without its head (a dead letter stays one, a retry goes on by itself).
DELETE FROM {hold} WHERE key_hash = :key_hash
