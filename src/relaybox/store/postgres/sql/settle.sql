-- name: outbox.settle.done -> count
-- Done means gone. The token is the fence: a claim that was taken over changes nothing.
DELETE FROM {pending} p
USING unnest(:seqs::bigint[], :tokens::bigint[]) AS s(seq, token)
WHERE p.seq = s.seq AND p.token = s.token

-- name: outbox.settle.retry -> count
UPDATE {pending} p
SET due = coalesce(:now, clock_timestamp()) + make_interval(secs => s.delay), last_error = s.error,
    token = NULL, owner = NULL, claimed_at = NULL
FROM unnest(:seqs::bigint[], :tokens::bigint[], :delays::float8[], :errors::text[])
  AS s(seq, token, delay, error)
WHERE p.seq = s.seq AND p.token = s.token

-- name: outbox.settle.dead -> count
WITH gone AS (
  DELETE FROM {pending} p
  USING unnest(:seqs::bigint[], :tokens::bigint[], :errors::text[]) AS s(seq, token, error)
  WHERE p.seq = s.seq AND p.token = s.token
  RETURNING p.seq, p.key_hash, p.attempts, s.error)
INSERT INTO {dead} (seq, key_hash, attempts, last_error, dead_at)
SELECT seq, key_hash, attempts, error, coalesce(:now, clock_timestamp()) FROM gone

-- name: outbox.settle.hold -> count
-- The rest of the key waits for this row. Fenced like every settle: the row must still be ours.
-- One row per key (the lowest): ON CONFLICT DO UPDATE refuses to change a row twice.
INSERT INTO {hold} AS h (key_hash, seq, parked, since)
SELECT DISTINCT ON (p.key_hash) p.key_hash, p.seq, :parked::boolean, coalesce(:now, clock_timestamp())
FROM {pending} p
JOIN unnest(:seqs::bigint[], :tokens::bigint[]) AS s(seq, token) ON p.seq = s.seq AND p.token = s.token
ORDER BY p.key_hash, p.seq
ON CONFLICT (key_hash) DO UPDATE SET seq = excluded.seq, parked = excluded.parked
WHERE h.seq >= excluded.seq

-- name: outbox.settle.unhold -> count
-- A head that is settled for good frees its key.
DELETE FROM {hold} WHERE seq = ANY(:seqs::bigint[])

-- name: outbox.settle.held -> rows
-- Keys that wait, oldest first, with what they wait for.
SELECT e.aggregate_id, h.seq, e.event_id, h.parked, h.since,
       coalesce(p.attempts, d.attempts), coalesce(p.last_error, d.last_error)
FROM {hold} h
LEFT JOIN {event} e ON e.seq = h.seq
LEFT JOIN {pending} p ON p.seq = h.seq
LEFT JOIN {dead} d ON d.seq = h.seq
ORDER BY h.since LIMIT :limit

-- name: outbox.settle.unblock -> count
-- An operator's decision: the key goes on without its head (which stays a dead letter, or retries on its own).
DELETE FROM {hold} WHERE key_hash = :key_hash
