-- name: outbox.dead.list -> rows
-- Oldest first, by keyset (:after) so that long lists page.
SELECT e.seq, {raw},
       d.attempts, d.last_error, d.dead_at
FROM {dead} d JOIN {event} e ON e.seq = d.seq
WHERE d.seq > :after
  AND (:event_type IS NULL OR e.event_type = :event_type)
  AND (:aggregate_type IS NULL OR coalesce(e.aggregate_type, '__GLOBAL__') = :aggregate_type)
  AND (:aggregate_id IS NULL OR e.aggregate_id = :aggregate_id)
  AND (:tenant_id IS NULL OR e.tenant_id = :tenant_id)
  AND (:event_id IS NULL OR e.event_id = :event_id)
ORDER BY d.seq LIMIT :limit

-- name: outbox.dead.numbers -> rows
-- Those of a replay: their events are not read.
SELECT d.seq FROM {dead} d JOIN {event} e ON e.seq = d.seq
WHERE d.seq > :after AND d.seq <= :newest
  AND (:event_type IS NULL OR e.event_type = :event_type)
  AND (:aggregate_type IS NULL OR coalesce(e.aggregate_type, '__GLOBAL__') = :aggregate_type)
  AND (:aggregate_id IS NULL OR e.aggregate_id = :aggregate_id)
  AND (:tenant_id IS NULL OR e.tenant_id = :tenant_id)
ORDER BY d.seq LIMIT :limit

-- name: outbox.dead.count -> rows
SELECT count(*) FROM {dead} d JOIN {event} e ON e.seq = d.seq
WHERE (:event_type IS NULL OR e.event_type = :event_type)
  AND (:aggregate_type IS NULL OR coalesce(e.aggregate_type, '__GLOBAL__') = :aggregate_type)
  AND (:aggregate_id IS NULL OR e.aggregate_id = :aggregate_id)
  AND (:tenant_id IS NULL OR e.tenant_id = :tenant_id)

-- name: outbox.dead.newest -> rows
-- The cut-off of a replay of all: what dies after it is not replayed again.
SELECT coalesce(max(seq), 0), {clock} FROM {dead}

-- name: outbox.dead.pick -> rows
SELECT seq FROM {dead} WHERE seq IN {seqs} AND dead_at <= :cutoff

-- name: outbox.dead.replay -> count
-- Back to the queue with fresh attempts; the old error stays readable until the next outcome.
INSERT INTO {pending} (seq, due, key_hash, attempts, last_error, since)
SELECT seq, {clock}, key_hash, 0, last_error, {clock} FROM {dead} WHERE seq IN {seqs}

-- name: outbox.dead.unpark -> count
-- A replayed head may be claimed again; the rows behind it still wait for it.
UPDATE {hold} SET parked = 0 WHERE seq IN {seqs}
