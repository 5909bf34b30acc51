-- name: outbox.dead.list -> rows
-- Oldest first, by keyset (:after) so that long lists page.
SELECT e.seq, e.event_id, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant_id, e.content_type,
       e.payload, e.headers, e.occurred_at, e.deliver_at, e.created_at,
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
SELECT d.seq FROM {seqs} STRAIGHT_JOIN {dead} d ON d.seq = s.seq WHERE d.dead_at <= :cutoff FOR UPDATE

-- name: outbox.dead.replay -> count
-- Back to the queue with fresh attempts; the old error stays readable until the next outcome.
INSERT INTO {pending} (seq, due, key_hash, attempts, last_error, since)
SELECT d.seq, {clock}, d.key_hash, 0, d.last_error, {clock} FROM {seqs} STRAIGHT_JOIN {dead} d ON d.seq = s.seq

-- name: outbox.dead.unpark -> count
-- A replayed head may be claimed again; the rows behind it still wait for it.
UPDATE {seqs} STRAIGHT_JOIN {hold} h ON h.seq = s.seq SET h.parked = false
