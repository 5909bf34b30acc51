-- name: inbox.order.look -> rows
-- Of rows we have locked: where they stand, and which number their key expects. A statement of its own, after the
-- locks: who has processed a predecessor since then will find the row held, and wake it.
SELECT p.seq, {key_of_m}, p.position, s.next,
       CASE WHEN s.next IS NULL THEN (SELECT min(q.position) FROM {pending} q
                                      WHERE q.key_hash = p.key_hash AND q.position IS NOT NULL) END
FROM {pending} p JOIN {message} m ON m.seq = p.seq LEFT JOIN {state} s
  ON s.key_hash = p.key_hash AND s.aggregate_id = m.aggregate_id
WHERE p.seq {in_seqs} AND p.position IS NOT NULL AND m.aggregate_id IS NOT NULL

-- name: inbox.order.begin -> count
INSERT INTO {state} (key_hash, aggregate_id, next, moved_at)
SELECT s.key_hash, s.key, s.next, {clock}
FROM unnest(:hashes::bigint[], :keys::text[], :nexts::bigint[]) AS s(key_hash, key, next)
ORDER BY s.key_hash
ON CONFLICT DO NOTHING

-- name: inbox.order.followers -> rows
-- What follows a number that is claimed now: it may come along. Locked like what was picked.
SELECT p.seq, p.key_hash, p.position
FROM unnest(:hashes::bigint[], :positions::bigint[]) AS s(key_hash, position)
JOIN {pending} p ON p.key_hash = s.key_hash AND p.position BETWEEN s.position AND s.position + :window - 1
WHERE p.held
FOR UPDATE OF p SKIP LOCKED

-- name: inbox.order.sleepers -> rows
-- What may go on after the commit that moved its key: never asked before. A claim that holds a row back reads the number
-- after locking it, so a row that is about to be held counts too, and its lock is waited for. Claimed ones do not.
SELECT p.seq FROM unnest(:hashes::bigint[], :positions::bigint[]) AS s(key_hash, position)
JOIN {pending} p ON p.key_hash = s.key_hash AND p.position = s.position
WHERE p.owner IS NULL

-- name: inbox.order.heads -> rows
-- Keys of which something is held back: the lowest number that is, since when it is here, and the number expected. From
-- key to key by the index: a long queue behind a gap is not read.
WITH RECURSIVE keys AS (
  (SELECT key_hash FROM {pending} WHERE position IS NOT NULL ORDER BY key_hash, position LIMIT 1)
  UNION ALL
  SELECT (SELECT p.key_hash FROM {pending} p WHERE p.position IS NOT NULL AND p.key_hash > k.key_hash
          ORDER BY p.key_hash, p.position LIMIT 1)
  FROM keys k WHERE k.key_hash IS NOT NULL)
SELECT {key_of_m}, h.position, s.next, h.key_hash, {age}
FROM keys k
CROSS JOIN LATERAL (SELECT p.seq, p.key_hash, p.position, p.held FROM {pending} p
                    WHERE p.key_hash = k.key_hash AND p.position IS NOT NULL ORDER BY p.position LIMIT 1) h
JOIN {message} m ON m.seq = h.seq
LEFT JOIN {state} s ON s.key_hash = h.key_hash AND s.aggregate_id = m.aggregate_id
WHERE h.held

-- name: inbox.order.gaps -> rows
-- Every run of missing numbers: before the first that waits (compared with the state) and between two that wait; with
-- the seconds since the message behind it came, and the first dead letter in it. Reads pending rows only, by their
-- index, whatever was processed: counting shows which keys are torn, and only of those neighbours are compared. What is
-- shown of a gap is looked up for the ones that are shown.
WITH keys AS MATERIALIZED (
  SELECT key_hash, min(position) AS low, count(DISTINCT position) <= max(position) - min(position) AS torn
  FROM {pending} WHERE position IS NOT NULL AND position >= 0 GROUP BY key_hash),
edges AS (
  SELECT key_hash, NULL::bigint AS previous, low AS position FROM keys
  UNION ALL
  SELECT k.key_hash, h.previous, h.position FROM keys k
  CROSS JOIN LATERAL (SELECT p.position, lag(p.position) OVER (ORDER BY p.position) AS previous FROM {pending} p
                      WHERE p.key_hash = k.key_hash AND p.position IS NOT NULL AND p.position >= 0) h
  WHERE k.torn AND h.position > h.previous + 1),
missing AS MATERIALIZED (
  SELECT e.key_hash, coalesce(greatest(e.previous + 1, s.next), :start::bigint) AS first, e.position - 1 AS last
  FROM edges e LEFT JOIN {state} s ON s.key_hash = e.key_hash
  WHERE coalesce(greatest(e.previous + 1, s.next), :start::bigint) < e.position),
gaps AS MATERIALIZED (
  SELECT behind.seq, g.key_hash, g.first, g.last FROM missing g
  CROSS JOIN LATERAL (SELECT p.seq FROM {pending} p WHERE p.key_hash = g.key_hash AND p.position = g.last + 1
                        AND p.position IS NOT NULL LIMIT 1) behind
  ORDER BY behind.seq LIMIT :limit)
SELECT {key_of_m}, g.first, g.last, {age}, {received},
       (SELECT d.seq FROM {dead} d WHERE d.key_hash = g.key_hash
        AND d.position IS NOT NULL AND d.position BETWEEN g.first AND g.last
        ORDER BY d.position LIMIT 1)
FROM gaps g JOIN {message} m ON m.seq = g.seq
WHERE m.aggregate_id IS NOT NULL

-- name: inbox.order.raise -> count
-- These numbers were processed: their keys go on behind them. Never back.
INSERT INTO {state} AS s (key_hash, aggregate_id, next, moved_at)
SELECT r.key_hash, r.key, r.next, {clock}
FROM unnest(:hashes::bigint[], :keys::text[], :nexts::bigint[]) AS r(key_hash, key, next)
ORDER BY r.key_hash
ON CONFLICT (key_hash, aggregate_id) DO UPDATE SET next = excluded.next, moved_at = excluded.moved_at
WHERE s.next < excluded.next
