-- name: outbox.settle.done -> rows
-- Takes settled events out of their claims and says how many were there. The claim row is the fence:
-- after a take-over it is gone and nothing changes. A claim settled whole is deleted, one settled in part
-- keeps the rest; asking twice (a reply was lost) takes nothing else away.
WITH s AS MATERIALIZED (
  SELECT token, array_agg(seq ORDER BY seq) AS seqs
  FROM unnest(:seqs::bigint[], :tokens::bigint[]) AS u(seq, token) GROUP BY token),
whole AS (
  DELETE FROM {claim} c USING s
  WHERE c.token = s.token AND ARRAY(SELECT item / 65536 FROM unnest(c.items) AS item) = s.seqs
  RETURNING cardinality(c.items) AS taken),
part AS (
  UPDATE {claim} c
  SET items = ARRAY(SELECT item FROM unnest(c.items) AS item
                    WHERE item / 65536 NOT IN (SELECT unnest(s.seqs)) ORDER BY item)
  FROM s JOIN {claim} o ON o.token = s.token
  WHERE c.token = s.token AND ARRAY(SELECT item / 65536 FROM unnest(c.items) AS item) <> s.seqs
  RETURNING cardinality(o.items) - cardinality(c.items) AS taken)
SELECT coalesce(sum(taken), 0) FROM (SELECT taken FROM whole UNION ALL SELECT taken FROM part) t

-- name: outbox.settle.retry -> count
-- Waits again, with the attempts the claim counted. The claims are locked before (outbox.claim.lock).
INSERT INTO {pending} (seq, due, key_hash, attempts, last_error)
SELECT e.seq, coalesce(:now, clock_timestamp()) + make_interval(secs => s.delay),
       {hash}(coalesce(e.aggregate_id, e.event_id)), item % 65536, s.error
FROM unnest(:seqs::bigint[], :tokens::bigint[], :delays::float8[], :errors::text[])
  AS s(seq, token, delay, error)
JOIN {claim} c ON c.token = s.token
JOIN LATERAL unnest(c.items) AS item ON item / 65536 = s.seq
JOIN {event} e ON e.seq = s.seq

-- name: outbox.settle.dead -> count
INSERT INTO {dead} (seq, attempts, last_error, dead_at)
SELECT s.seq, item % 65536, s.error, coalesce(:now, clock_timestamp())
FROM unnest(:seqs::bigint[], :tokens::bigint[], :errors::text[]) AS s(seq, token, error)
JOIN {claim} c ON c.token = s.token
JOIN LATERAL unnest(c.items) AS item ON item / 65536 = s.seq

-- name: outbox.settle.hold -> count
-- The rest of the key waits for this row. Fenced like every settle: the claim must still be ours.
INSERT INTO {hold} AS h (key_hash, seq, parked, since)
SELECT DISTINCT ON (k.hash) k.hash, e.seq, :parked::boolean, coalesce(:now, clock_timestamp())
FROM unnest(:seqs::bigint[], :tokens::bigint[]) AS s(seq, token)
JOIN {claim} c ON c.token = s.token
JOIN {event} e ON e.seq = s.seq
CROSS JOIN LATERAL (SELECT {hash}(coalesce(e.aggregate_id, e.event_id)) AS hash) k
ORDER BY k.hash, e.seq
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
-- An operator's decision: the key goes on without its head (a dead letter stays one, a retry goes on by itself).
DELETE FROM {hold} WHERE key_hash = :key_hash
