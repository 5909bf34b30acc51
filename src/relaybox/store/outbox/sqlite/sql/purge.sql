-- name: outbox.purge.now -> rows
-- Ages are counted by the clock that dated the events.
SELECT {clock}

-- name: outbox.purge.seen -> rows
-- Old events from :after on, by seq, so dead letters at the front are passed once per run.
SELECT seq FROM {event}
WHERE seq > :after AND coalesce(deliver_at, created_at) < :before ORDER BY seq LIMIT :limit

-- name: outbox.purge.done -> count
-- Of those the finished: neither pending nor dead.
DELETE FROM {event}
WHERE seq IN {seqs}
  AND NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.seq = {event}.seq)
  AND NOT EXISTS (SELECT 1 FROM {dead} d WHERE d.seq = {event}.seq)

-- name: outbox.purge.dead -> rows
-- Only on request: dead letters that died before :before, with their events.
SELECT seq FROM {dead} WHERE dead_at < :before ORDER BY seq LIMIT :limit

-- name: outbox.purge.age -> rows
-- Writer-only tables: by age alone, whatever the state.
SELECT seq FROM {event} WHERE created_at < :before ORDER BY seq LIMIT :limit

-- name: outbox.purge.pending -> count
DELETE FROM {pending} WHERE seq IN {seqs}

-- name: outbox.purge.letter -> count
DELETE FROM {dead} WHERE seq IN {seqs}

-- name: outbox.purge.hold -> count
DELETE FROM {hold} WHERE seq IN {seqs}

-- name: outbox.purge.event -> count
DELETE FROM {event} WHERE seq IN {seqs}
