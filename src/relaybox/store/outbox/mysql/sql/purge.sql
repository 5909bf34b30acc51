-- name: outbox.purge.now -> rows
-- Ages are counted by the clock that dated the events.
SELECT {clock}

-- name: outbox.purge.seen -> rows
-- Old events from :after on, by seq, so dead letters at the front are passed once per run.
SELECT seq FROM {event}
WHERE seq > :after AND coalesce(deliver_at, created_at) < :before ORDER BY seq LIMIT :limit

-- name: outbox.purge.done -> count
-- Of those the finished: neither pending nor dead.
DELETE e FROM {seqs} STRAIGHT_JOIN {event} e ON e.seq = s.seq
LEFT JOIN {pending} p ON p.seq = e.seq
LEFT JOIN {dead} d ON d.seq = e.seq
WHERE p.seq IS NULL AND d.seq IS NULL

-- name: outbox.purge.dead -> rows
-- Only on request: dead letters that died before :before, with their events.
SELECT seq FROM {dead} WHERE dead_at < :before ORDER BY seq LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: outbox.purge.age -> rows
-- Writer-only tables: by age alone, whatever the state.
SELECT seq FROM {event} WHERE created_at < :before ORDER BY seq LIMIT :limit

-- name: outbox.purge.pending -> count
DELETE p FROM {seqs} STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = s.seq

-- name: outbox.purge.letter -> count
DELETE d FROM {seqs} STRAIGHT_JOIN {dead} d ON d.seq = s.seq

-- name: outbox.purge.hold -> count
DELETE h FROM {seqs} STRAIGHT_JOIN {hold} h ON h.seq = s.seq

-- name: outbox.purge.event -> count
DELETE e FROM {seqs} STRAIGHT_JOIN {event} e ON e.seq = s.seq
