-- name: outbox.claim -> rows
-- Takes the longest-due rows: new, retried and expired alike. MATERIALIZED, or a nested-loop plan may
-- claim more than the limit. The scalar subquery lets the index on (due, seq) bound the scan:
-- clock_timestamp() alone is volatile and would filter the whole table. An event row that somebody
-- deleted still comes back (LEFT JOIN), so that its pending row can be settled.
WITH clock AS MATERIALIZED (SELECT coalesce(:now, clock_timestamp()) AS now),
picked AS MATERIALIZED (
  SELECT seq FROM {pending}
  WHERE due <= (SELECT now FROM clock)
  ORDER BY due, seq
  LIMIT :limit
  FOR UPDATE SKIP LOCKED),
claimed AS (
  UPDATE {pending} p
  SET due = c.now + make_interval(secs => :lease::float8), token = :token, owner = :owner,
      claimed_at = c.now, attempts = p.attempts + 1
  FROM picked, clock c
  WHERE p.seq = picked.seq
  RETURNING p.seq, p.attempts)
SELECT c.seq, e.event_id, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant_id, e.content_type,
       e.payload, e.headers, e.occurred_at, e.deliver_at, e.created_at, c.attempts
FROM claimed c LEFT JOIN {event} e ON e.seq = c.seq

-- name: outbox.claim.ordered -> rows
-- For ordered delivery: only shards this instance owns now, and no row behind a held head. By seq, not by due: a
-- row that was given back is due later than its successors and must still go before them.
-- FOR SHARE on the shard rows makes a take-over wait for this claim, so it will see and free the rows.
WITH clock AS MATERIALIZED (SELECT coalesce(:now, clock_timestamp()) AS now),
mine AS MATERIALIZED (
  SELECT shard FROM {shard} WHERE owner = :owner AND until > (SELECT now FROM clock) FOR SHARE),
picked AS MATERIALIZED (
  SELECT p.seq FROM {pending} p
  WHERE p.due <= (SELECT now FROM clock)
    AND (p.key_hash >> 32) % :shards IN (SELECT shard FROM mine)
    AND NOT EXISTS (SELECT 1 FROM {hold} h WHERE h.key_hash = p.key_hash AND h.seq < p.seq)
    AND NOT EXISTS (SELECT 1 FROM {hold} h WHERE h.key_hash = p.key_hash AND h.seq = p.seq AND h.parked)
  ORDER BY p.seq
  LIMIT :limit
  FOR UPDATE OF p SKIP LOCKED),
claimed AS (
  UPDATE {pending} p
  SET due = c.now + make_interval(secs => :lease::float8), token = :token, owner = :owner,
      claimed_at = c.now, attempts = p.attempts + 1
  FROM picked, clock c
  WHERE p.seq = picked.seq
  RETURNING p.seq, p.attempts)
SELECT c.seq, e.event_id, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant_id, e.content_type,
       e.payload, e.headers, e.occurred_at, e.deliver_at, e.created_at, c.attempts
FROM claimed c LEFT JOIN {event} e ON e.seq = c.seq

-- name: outbox.claim.verify -> rows
-- Which rows of a hand-over exist: one whose savepoint was rolled back does not.
SELECT p.seq FROM {pending} p
JOIN unnest(:seqs::bigint[], :tokens::bigint[]) AS s(seq, token) ON p.seq = s.seq AND p.token = s.token

-- name: outbox.claim.renew -> rows
UPDATE {pending} p
SET due = coalesce(:now, clock_timestamp()) + make_interval(secs => :lease::float8)
FROM unnest(:seqs::bigint[], :tokens::bigint[]) AS s(seq, token)
WHERE p.seq = s.seq AND p.token = s.token
RETURNING p.seq

-- name: outbox.claim.release -> count
-- Given back untried: due at once, and the attempt that claiming counted is taken back.
UPDATE {pending} p
SET due = coalesce(:now, clock_timestamp()), token = NULL, owner = NULL, claimed_at = NULL,
    attempts = greatest(p.attempts - 1, 0)
FROM unnest(:seqs::bigint[], :tokens::bigint[]) AS s(seq, token)
WHERE p.seq = s.seq AND p.token = s.token

-- name: outbox.claim.oldest -> rows
-- Seconds that the oldest due row has waited; no row when nothing is due.
SELECT extract(epoch FROM coalesce(:now, clock_timestamp()) - due)::float8 FROM {pending}
WHERE due <= (SELECT coalesce(:now, clock_timestamp())) ORDER BY due, seq LIMIT 1

-- name: outbox.claim.next -> rows
-- Seconds until the next row is due, so that an idle poller can sleep exactly that long.
SELECT extract(epoch FROM due - coalesce(:now, clock_timestamp()))::float8 FROM {pending}
ORDER BY due LIMIT 1
