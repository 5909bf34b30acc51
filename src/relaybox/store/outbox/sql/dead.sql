-- name: outbox.dead.list -> rows
-- Oldest first, by keyset (:after) so that long lists page.
SELECT e.seq, {event_columns},
       d.attempts, d.last_error, d.dead_at
FROM {dead} d JOIN {event} e ON e.seq = d.seq
WHERE d.seq > :after
  AND {filter}
  AND (:event_id::text IS NULL OR e.event_id = :event_id)
ORDER BY d.seq LIMIT :limit

-- name: outbox.dead.numbers -> rows
-- Those of a replay: their events are not read.
SELECT d.seq FROM {dead} d JOIN {event} e ON e.seq = d.seq
WHERE d.seq > :after AND d.seq <= :newest
  AND {filter}
ORDER BY d.seq LIMIT :limit

-- name: outbox.dead.count -> rows
SELECT count(*) FROM {dead} d JOIN {event} e ON e.seq = d.seq
WHERE {filter}

-- name: outbox.dead.newest -> rows
-- The cut-off of a replay of all: what dies after it is not replayed again.
SELECT coalesce(max(seq), 0), {clock} FROM {dead}

-- name: outbox.dead.unpark -> count
-- A replayed head may be claimed again; the rows behind it still wait for it.
UPDATE {hold} SET parked = false WHERE seq {in_seqs}
