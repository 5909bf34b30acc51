-- name: inbox.order.look -> rows
-- Where rows stand, and which number their key expects.
SELECT p.seq, m.aggregate_id, p.position, s.next,
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

-- name: inbox.order.hold -> count
UPDATE {pending} SET due = {never}, held = 1 WHERE seq IN {seqs}

-- name: inbox.order.followers -> rows
-- What follows a number that is claimed now: it may come along.
SELECT p.seq, p.key_hash, p.position
FROM json_each(:rows) r CROSS JOIN {pending} p
ON p.key_hash = json_extract(r.value, '$[0]')
   AND p.position BETWEEN json_extract(r.value, '$[1]') AND json_extract(r.value, '$[1]') + :window - 1
WHERE p.held

-- name: inbox.order.advance -> count
-- In the transaction of the effect: of two that have the same number one gets through.
UPDATE {state} SET next = :position + 1, moved_at = {clock}
WHERE key_hash = :key_hash AND aggregate_id = :key AND next = :position

-- name: inbox.order.next -> rows
SELECT next FROM {state} WHERE key_hash = :key_hash AND aggregate_id = :key

-- name: inbox.order.sleepers -> rows
-- What may go on after the commit that moved its key.
SELECT p.seq FROM json_each(:rows) r CROSS JOIN {pending} p
ON p.key_hash = json_extract(r.value, '$[0]') AND p.position = json_extract(r.value, '$[1]')
WHERE p.owner IS NULL

-- name: inbox.order.wake -> count
UPDATE {pending} SET due = CASE WHEN held THEN {clock} ELSE due END, held = 0 WHERE seq IN {seqs} AND owner IS NULL

-- name: inbox.order.move -> count
-- An operator's word, or age: the key goes on with this number. It never goes back.
INSERT INTO {state} AS s (key_hash, aggregate_id, next, moved_at) VALUES (:key_hash, :key, :next, {clock})
ON CONFLICT (key_hash, aggregate_id) DO UPDATE SET next = excluded.next, moved_at = excluded.moved_at
WHERE s.next < excluded.next

-- name: inbox.order.heads -> rows
-- Keys of which something is held back: the lowest number that is, since when it is here, and the number expected. From
-- key to key by the index: a long queue behind a gap is not read.
WITH RECURSIVE keys(key_hash) AS (
  SELECT min(key_hash) FROM {pending} WHERE position IS NOT NULL
  UNION ALL
  SELECT (SELECT min(p.key_hash) FROM {pending} p WHERE p.position IS NOT NULL AND p.key_hash > k.key_hash)
  FROM keys k WHERE k.key_hash IS NOT NULL)
SELECT m.aggregate_id, h.position, s.next, h.key_hash, ({clock} - m.received_at) / 1000000.0
FROM keys k
JOIN {pending} h ON h.seq = (SELECT p.seq FROM {pending} p WHERE p.key_hash = k.key_hash AND p.position IS NOT NULL
                             ORDER BY p.position LIMIT 1)
JOIN {message} m ON m.seq = h.seq
LEFT JOIN {state} s ON s.key_hash = h.key_hash AND s.aggregate_id = m.aggregate_id
WHERE h.held

-- name: inbox.order.gaps -> rows
-- Every run of missing numbers: before the first that waits (compared with the state) and between two that wait; with
-- the seconds since the message behind it came, and whether a dead letter lies in it. Reads pending rows only, by their
-- index, whatever was processed; messages and letters are looked up only for what is shown.
WITH here AS (
  SELECT seq, key_hash, position, lag(position) OVER (PARTITION BY key_hash ORDER BY position) AS previous
  FROM {pending} WHERE position IS NOT NULL),
gaps AS (
  SELECT e.seq, e.key_hash, e.position - 1 AS last,
         max(coalesce(e.previous + 1, s.next, :start), coalesce(s.next, e.previous + 1, :start)) AS first
  FROM here e LEFT JOIN {state} s ON s.key_hash = e.key_hash
  WHERE (e.previous IS NULL OR e.position > e.previous + 1) AND first <= last
  ORDER BY e.seq LIMIT :limit)
SELECT m.aggregate_id, g.first, g.last, ({clock} - m.received_at) / 1000000.0,
       EXISTS (SELECT 1 FROM {dead} d WHERE d.key_hash = g.key_hash AND d.position IS NOT NULL
                                        AND d.position BETWEEN g.first AND g.last)
FROM gaps g JOIN {message} m ON m.seq = g.seq
WHERE m.aggregate_id IS NOT NULL

-- name: inbox.order.lowest -> rows
-- The lowest number of a key that is held back.
SELECT min(position) FROM {pending} WHERE key_hash = :key_hash AND position IS NOT NULL AND held

-- name: inbox.order.history -> rows
-- Processed messages of keys that wait for a number: it may have been processed before there was an order, up to :until.
SELECT m.aggregate_id, m.headers FROM {done} f JOIN {message} m ON m.seq = f.seq
WHERE f.seq <= :until AND m.aggregate_id IN (SELECT value FROM json_each(:keys)) AND m.headers IS NOT NULL

-- name: inbox.order.numbered -> rows
-- Of messages that are about to go those that may have a number.
SELECT seq, aggregate_id, headers FROM {message}
WHERE seq IN {seqs} AND aggregate_id IS NOT NULL AND instr(headers, 'sequence') > 0

-- name: inbox.order.raise -> count
-- These numbers were processed: their keys go on behind them. Never back.
INSERT INTO {state} (key_hash, aggregate_id, next, moved_at)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), {clock}
FROM json_each(:rows) WHERE true
ON CONFLICT (key_hash, aggregate_id) DO UPDATE SET next = excluded.next, moved_at = excluded.moved_at
WHERE next < excluded.next

-- name: inbox.order.last -> rows
-- Where the messages end that are here, and what time it is.
SELECT coalesce(max(seq), 0), {clock} FROM {message}

-- name: inbox.order.older -> rows
-- Whether a processor is alive that began before there was an order, and keeps none.
SELECT 1 FROM {instance} WHERE started_at < :at AND expires_at >= {clock} LIMIT 1

-- name: inbox.order.free -> count
-- Order is given up: whatever was held back is due.
UPDATE {pending} SET due = {clock}, held = 0 WHERE held
