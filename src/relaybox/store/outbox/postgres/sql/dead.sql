-- name: outbox.dead.list -> rows
-- Oldest first, by keyset (:after) so that long lists page.
SELECT e.seq, e.event_id, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant_id, e.content_type,
       e.payload, e.headers, timestamptz_send(e.occurred_at), timestamptz_send(e.deliver_at),
       timestamptz_send(e.created_at),
       d.attempts, d.last_error, d.dead_at
FROM {dead} d JOIN {event} e ON e.seq = d.seq
WHERE d.seq > :after
  AND (:event_type::text IS NULL OR e.event_type = :event_type)
  AND (:aggregate_type::text IS NULL OR coalesce(e.aggregate_type, '__GLOBAL__') = :aggregate_type)
  AND (:aggregate_id::text IS NULL OR e.aggregate_id = :aggregate_id)
  AND (:tenant_id::text IS NULL OR e.tenant_id = :tenant_id)
  AND (:event_id::text IS NULL OR e.event_id = :event_id)
ORDER BY d.seq LIMIT :limit

-- name: outbox.dead.numbers -> rows
-- Those of a replay: their events are not read.
SELECT d.seq FROM {dead} d JOIN {event} e ON e.seq = d.seq
WHERE d.seq > :after AND d.seq <= :newest
  AND (:event_type::text IS NULL OR e.event_type = :event_type)
  AND (:aggregate_type::text IS NULL OR coalesce(e.aggregate_type, '__GLOBAL__') = :aggregate_type)
  AND (:aggregate_id::text IS NULL OR e.aggregate_id = :aggregate_id)
  AND (:tenant_id::text IS NULL OR e.tenant_id = :tenant_id)
ORDER BY d.seq LIMIT :limit

-- name: outbox.dead.count -> rows
SELECT count(*) FROM {dead} d JOIN {event} e ON e.seq = d.seq
WHERE (:event_type::text IS NULL OR e.event_type = :event_type)
  AND (:aggregate_type::text IS NULL OR coalesce(e.aggregate_type, '__GLOBAL__') = :aggregate_type)
  AND (:aggregate_id::text IS NULL OR e.aggregate_id = :aggregate_id)
  AND (:tenant_id::text IS NULL OR e.tenant_id = :tenant_id)

-- name: outbox.dead.newest -> rows
-- The cut-off of a replay of all: what dies after it is not replayed again.
SELECT coalesce(max(seq), 0), coalesce(:now, clock_timestamp()) FROM {dead}

-- name: outbox.dead.replay -> rows
-- Back to the queue with fresh attempts; the old error stays readable until the next outcome.
WITH gone AS (
  DELETE FROM {dead} WHERE seq = ANY(:seqs::bigint[]) AND dead_at <= :cutoff
  RETURNING seq, last_error)
INSERT INTO {pending} (seq, due, key_hash, attempts, last_error, since)
SELECT e.seq, coalesce(:now, clock_timestamp()), {hash}(coalesce(e.aggregate_id, e.event_id)), 0, gone.last_error,
       coalesce(:now, clock_timestamp())
FROM gone JOIN {event} e ON e.seq = gone.seq
RETURNING seq

-- name: outbox.dead.unpark -> count
-- A replayed head may be claimed again; the rows behind it still wait for it.
UPDATE {hold} SET parked = false WHERE seq = ANY(:seqs::bigint[])
