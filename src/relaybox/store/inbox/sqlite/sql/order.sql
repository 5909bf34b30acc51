-- name: inbox.order.look -> rows
-- Where rows stand, and which number their key expects.
SELECT p.seq, {key_of_m}, p.position, s.next,
       CASE WHEN s.next IS NULL THEN (SELECT min(q.position) FROM {pending} q
                                      WHERE q.key_hash = p.key_hash AND q.position IS NOT NULL) END
FROM json_each(:seqs) n CROSS JOIN {pending} p ON p.seq = n.value
JOIN {message} m ON m.seq = p.seq
LEFT JOIN {state} s ON s.key_hash = p.key_hash AND s.aggregate_id = m.aggregate_id
WHERE p.position IS NOT NULL AND m.aggregate_id IS NOT NULL

-- name: inbox.order.begin -> count
INSERT INTO {state} (key_hash, aggregate_id, next, moved_at)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), {clock} FROM json_each(:rows) WHERE true
ON CONFLICT DO NOTHING

-- name: inbox.order.followers -> rows
-- What follows a number that is claimed now: it may come along.
SELECT p.seq, p.key_hash, p.position
FROM json_each(:rows) r CROSS JOIN {pending} p
ON p.key_hash = json_extract(r.value, '$[0]')
   AND p.position BETWEEN json_extract(r.value, '$[1]') AND json_extract(r.value, '$[1]') + :window - 1
WHERE p.held

-- name: inbox.order.sleepers -> rows
-- What may go on after the commit that moved its key.
SELECT p.seq FROM json_each(:rows) r CROSS JOIN {pending} p
ON p.key_hash = json_extract(r.value, '$[0]') AND p.position = json_extract(r.value, '$[1]')
WHERE p.owner IS NULL

-- name: inbox.order.heads -> rows
-- Keys of which something is held back: the lowest number that is, since when it is here, and the number expected. From
-- key to key by the index: a long queue behind a gap is not read.
WITH RECURSIVE keys(key_hash) AS (
  SELECT min(key_hash) FROM {pending} WHERE position IS NOT NULL
  UNION ALL
  SELECT (SELECT min(p.key_hash) FROM {pending} p WHERE p.position IS NOT NULL AND p.key_hash > k.key_hash)
  FROM keys k WHERE k.key_hash IS NOT NULL)
SELECT {key_of_m}, h.position, s.next, h.key_hash, {age}
FROM keys k
JOIN {pending} h ON h.seq = (SELECT p.seq FROM {pending} p WHERE p.key_hash = k.key_hash AND p.position IS NOT NULL
                             ORDER BY p.position LIMIT 1)
JOIN {message} m ON m.seq = h.seq
LEFT JOIN {state} s ON s.key_hash = h.key_hash AND s.aggregate_id = m.aggregate_id
WHERE h.held

-- name: inbox.order.gaps -> rows
-- Every run of missing numbers: before the first that waits (compared with the state) and between two that wait; with
-- the seconds since the message behind it came, and the first dead letter in it. Reads pending rows only, by their
-- index, whatever was processed; messages and letters are looked up only for what is shown.
WITH here AS (
  SELECT seq, key_hash, position, lag(position) OVER (PARTITION BY key_hash ORDER BY position) AS previous
  FROM {pending} WHERE position IS NOT NULL AND position >= 0 AND typeof(position) = 'integer'),
gaps AS (
  SELECT e.seq, e.key_hash, e.position - 1 AS last,
         max(coalesce(e.previous + 1, s.next, :start), coalesce(s.next, e.previous + 1, :start)) AS first
  FROM here e LEFT JOIN {state} s ON s.key_hash = e.key_hash
  WHERE (e.previous IS NULL OR e.position > e.previous + 1) AND first <= last
  ORDER BY e.seq LIMIT :limit)
SELECT {key_of_m}, g.first, g.last, {age}, {received},
       (SELECT d.seq FROM {dead} d WHERE d.key_hash = g.key_hash
        AND d.position IS NOT NULL AND d.position BETWEEN g.first AND g.last
        ORDER BY d.position LIMIT 1)
FROM gaps g JOIN {message} m ON m.seq = g.seq
WHERE m.aggregate_id IS NOT NULL

-- name: inbox.order.raise -> count
-- These numbers were processed: their keys go on behind them. Never back.
INSERT INTO {state} (key_hash, aggregate_id, next, moved_at)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), {clock}
FROM json_each(:rows) WHERE true
ON CONFLICT (key_hash, aggregate_id) DO UPDATE SET next = excluded.next, moved_at = excluded.moved_at
WHERE next < excluded.next
