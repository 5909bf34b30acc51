-- name: outbox.settle.done -> rows
-- Takes settled events out of their claims and says how many were there. The claim row is the fence:
-- after a take-over it is gone and nothing changes. A claim settled whole is deleted, one settled in part
-- keeps the rest; asking twice (a reply was lost) takes nothing else away. The claims are locked first, in one
-- order for all, and read as they are then: another part of the same claim may be settled or given back meanwhile.
-- NOT IN is hashed, so a large claim costs no more per event than a small one.
WITH locked AS MATERIALIZED (
  SELECT token, items FROM {claim} WHERE token = ANY(:tokens::bigint[]) ORDER BY token FOR UPDATE),
kept AS MATERIALIZED (
  SELECT token, cardinality(items) AS had,
         ARRAY(SELECT item FROM unnest(l.items) AS item
               WHERE (l.token, item / 65536) NOT IN (
                 SELECT s.token, s.seq FROM unnest(:seqs::bigint[], :tokens::bigint[]) AS s(seq, token))) AS items
  FROM locked l),
whole AS (DELETE FROM {claim} c USING kept k WHERE c.token = k.token AND cardinality(k.items) = 0),
part AS (
  UPDATE {claim} c SET items = k.items FROM kept k
  WHERE c.token = k.token AND cardinality(k.items) BETWEEN 1 AND k.had - 1)
SELECT coalesce(sum(had - cardinality(items)), 0) FROM kept

-- name: outbox.settle.whole -> rows
-- The same for claims of which everything that is left is done: nothing is said event by event, and nothing looked
-- at, unless keys are held. IS TRUE keeps IN a hashed lookup.
WITH locked AS MATERIALIZED (
  SELECT token, items FROM {claim} WHERE token = ANY(:tokens::bigint[]) ORDER BY token FOR UPDATE),
unheld AS (
  DELETE FROM {hold}
  WHERE :ordered AND (seq IN (SELECT item / 65536 FROM locked, unnest(locked.items) AS item)) IS TRUE),
gone AS (DELETE FROM {claim} c USING locked l WHERE c.token = l.token)
SELECT coalesce(sum(cardinality(items)), 0) FROM locked

-- name: outbox.settle.retry -> count
-- Waits again, with the attempts the claim counted, unless this one was nobody's fault. The claims are locked before
-- (outbox.claim.lock).
INSERT INTO {pending} (seq, due, key_hash, attempts, tenant, last_error)
SELECT e.seq, {clock} + make_interval(secs => s.delay),
       {hash}(coalesce(e.aggregate_id, e.event_id)), greatest(item % 65536::bigint - s.uncounted, 0),
       coalesce(e.tenant_id, ''), s.error
FROM unnest(:seqs::bigint[], :tokens::bigint[], :delays::float8[], :errors::text[], :uncounted::integer[])
  AS s(seq, token, delay, error, uncounted)
JOIN {claim} c ON c.token = s.token
JOIN LATERAL unnest(c.items) AS item ON item / 65536 = s.seq
JOIN {event} e ON e.seq = s.seq
{once}

-- name: outbox.settle.dead -> count
-- One that is a dead letter already dies again, of what it died of now.
INSERT INTO {dead} (seq, attempts, last_error, dead_at)
SELECT DISTINCT ON (s.seq) s.seq, item % 65536::bigint, s.error, {clock}
FROM unnest(:seqs::bigint[], :tokens::bigint[], :errors::text[]) AS s(seq, token, error)
JOIN {claim} c ON c.token = s.token
JOIN LATERAL unnest(c.items) AS item ON item / 65536 = s.seq
ORDER BY s.seq
ON CONFLICT (seq) DO UPDATE
SET attempts = excluded.attempts, last_error = excluded.last_error, dead_at = excluded.dead_at

-- name: outbox.settle.hold -> count
-- The rest of the key waits for this row. Fenced like every settle: the event must still be in our claim.
INSERT INTO {hold} AS h (key_hash, seq, parked, since)
SELECT DISTINCT ON (k.hash) k.hash, e.seq, :parked::boolean, {clock}
FROM unnest(:seqs::bigint[], :tokens::bigint[]) AS s(seq, token)
JOIN {claim} c ON c.token = s.token
JOIN LATERAL unnest(c.items) AS item ON item / 65536 = s.seq
JOIN {event} e ON e.seq = s.seq
CROSS JOIN LATERAL (SELECT {hash}(coalesce(e.aggregate_id, e.event_id)) AS hash) k
ORDER BY k.hash, e.seq
ON CONFLICT (key_hash) DO UPDATE SET seq = excluded.seq, parked = excluded.parked
WHERE h.seq >= excluded.seq

-- name: outbox.settle.unhold -> count
-- A head that is about to be settled for good frees its key. Fenced too: a zombie's late success must not free a key
-- whose head somebody else is trying again.
WITH locked AS MATERIALIZED (
  SELECT token, items FROM {claim} WHERE token = ANY(:tokens::bigint[]) ORDER BY token FOR UPDATE)
DELETE FROM {hold} h
WHERE h.seq {in_seqs}
  AND EXISTS (SELECT 1 FROM locked l, unnest(l.items) AS item
              WHERE l.token = (:tokens::bigint[])[array_position(:seqs::bigint[], h.seq)] AND item / 65536 = h.seq)
