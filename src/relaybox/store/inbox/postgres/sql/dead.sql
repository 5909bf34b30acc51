-- name: inbox.dead.count -> rows
SELECT count(*) FROM {dead} d JOIN {message} m ON m.seq = d.seq
WHERE true
  AND (:event_type::text IS NULL OR m.event_type = :event_type)
  AND (:source::text IS NULL OR m.source = :source)
  AND (:aggregate_id::text IS NULL OR m.aggregate_id = :aggregate_id)
  AND (:tenant_id::text IS NULL OR m.tenant_id = :tenant_id)
  AND (:since::timestamptz IS NULL OR m.received_at >= :since)
  AND (:before::timestamptz IS NULL OR m.received_at < :before)

-- name: inbox.replay.find -> rows
SELECT seq FROM {message} WHERE event_id = ANY(:event_ids::text[])

-- name: inbox.replay.done -> rows
-- Locked before it is read: a drain passes over it, and one that was first is waited for.
SELECT seq FROM {done} WHERE seq = ANY(:seqs::bigint[]) ORDER BY seq FOR UPDATE

-- name: inbox.replay.dead -> rows
SELECT seq FROM {dead} WHERE seq = ANY(:seqs::bigint[]) ORDER BY seq FOR UPDATE

-- name: inbox.replay.read -> rows
-- Of these ids the messages that are dead or processed. Their payloads stay where they are.
SELECT m.seq, m.event_id, m.event_type, m.aggregate_type, m.aggregate_id, m.tenant_id, m.content_type,
       ''::bytea, m.headers, m.occurred_at, NULL, m.received_at, d.seq IS NOT NULL, f.seq IS NOT NULL
FROM {message} m LEFT JOIN {dead} d ON d.seq = m.seq LEFT JOIN {done} f ON f.seq = m.seq
WHERE m.event_id = ANY(:event_ids::text[]) AND (d.seq IS NOT NULL OR f.seq IS NOT NULL)
ORDER BY m.seq

-- name: inbox.replay.pending -> count
-- Due at once, with fresh attempts. A number that has had its turn runs beside the sequence.
INSERT INTO {pending} (seq, due, key_hash, position, priority, replayed, attempts)
SELECT s.seq, coalesce(:now, clock_timestamp()), s.key_hash, s.position, s.priority, true, 0
FROM unnest(:seqs::bigint[], :hashes::bigint[], :positions::bigint[], :priorities::smallint[])
  AS s(seq, key_hash, position, priority)
ON CONFLICT DO NOTHING

-- name: inbox.replay.undone -> count
DELETE FROM {done} WHERE seq = ANY(:seqs::bigint[])

-- name: inbox.replay.undead -> count
DELETE FROM {dead} WHERE seq = ANY(:seqs::bigint[])

-- name: inbox.drain.message -> count
-- The id stays, with its type and when it came. Never gone for a moment: it could be accepted in that.
UPDATE {message}
SET payload = NULL, headers = NULL, source = NULL, aggregate_type = NULL, aggregate_id = NULL, tenant_id = NULL,
    content_type = NULL
WHERE seq = ANY(:seqs::bigint[])
