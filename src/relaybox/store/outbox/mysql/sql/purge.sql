-- name: outbox.purge.done -> count
-- Of those the finished: neither pending nor dead.
DELETE e FROM {seqs} STRAIGHT_JOIN {event} e ON e.seq = s.seq
LEFT JOIN {pending} p ON p.seq = e.seq
LEFT JOIN {dead} d ON d.seq = e.seq
WHERE p.seq IS NULL AND d.seq IS NULL

-- name: outbox.purge.hold -> count
DELETE h FROM {seqs} STRAIGHT_JOIN {hold} h ON h.seq = s.seq

-- name: outbox.purge.event -> count
DELETE e FROM {seqs} STRAIGHT_JOIN {event} e ON e.seq = s.seq
