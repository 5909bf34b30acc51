-- name: inbox.order.look -> rows
-- Of rows we have locked: where they stand, and which number their key expects. A statement of its own, after the
-- locks: who has processed a predecessor since then will find the row held, and wake it.
SELECT p.seq, {key_of_m}, p.position, t.next,
       CASE WHEN t.next IS NULL THEN (SELECT min(q.position) FROM {pending} q WHERE q.key_hash = p.key_hash) END
FROM {seqs} STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = s.seq
JOIN {message} m ON m.seq = p.seq
LEFT JOIN {state} t ON t.key_hash = p.key_hash AND t.aggregate_id = CAST(m.aggregate_id AS binary)
WHERE p.position IS NOT NULL AND m.aggregate_id IS NOT NULL

-- name: inbox.order.begin -> count
INSERT IGNORE INTO {state} (key_hash, aggregate_id, next, moved_at)
SELECT s.key_hash, CAST(s.aggregate_id AS binary), s.next, {clock}
FROM JSON_TABLE({rows}, '$[*]' COLUMNS (
  key_hash bigint PATH '$[0]', aggregate_id varchar(255) {text} PATH '$[1]' ERROR ON ERROR, next bigint PATH '$[2]')) s

-- name: inbox.order.followers -> rows
-- What follows a number that is claimed now: it may come along. Locked like what was picked.
SELECT p.seq, p.key_hash, p.position
FROM (SELECT j.* FROM JSON_TABLE({rows}, '$[*]' COLUMNS (
        key_hash bigint PATH '$[0]', position bigint PATH '$[1]')) j) s
STRAIGHT_JOIN {pending} p FORCE INDEX ({pending_name}_pos)
  ON p.key_hash = s.key_hash AND p.position BETWEEN s.position AND s.position + :window - 1
WHERE p.held
{skip_locked}

-- name: inbox.order.advance -> count
-- In the transaction of the effect: of two that have the same number one gets through.
UPDATE {state} SET next = :position + 1, moved_at = {clock}
WHERE key_hash = :key_hash AND aggregate_id = CAST(CONVERT(:key USING utf8mb4) AS binary) AND next = :position

-- name: inbox.order.next -> rows
SELECT next FROM {state} WHERE key_hash = :key_hash AND aggregate_id = CAST(CONVERT(:key USING utf8mb4) AS binary)

-- name: inbox.order.sleepers -> rows
-- What may go on after the commit that moved its key: never asked before. A claim that holds a row back reads the number
-- after locking it, so a row that is about to be held counts too, and its lock is waited for. Claimed ones do not.
SELECT p.seq
FROM JSON_TABLE({rows}, '$[*]' COLUMNS (key_hash bigint PATH '$[0]', position bigint PATH '$[1]')) s
STRAIGHT_JOIN {pending} p FORCE INDEX ({pending_name}_pos) ON p.key_hash = s.key_hash AND p.position = s.position
WHERE p.owner IS NULL

-- name: inbox.order.move -> count
-- An operator's word, or age: the key goes on with this number. It never goes back.
INSERT INTO {state} (key_hash, aggregate_id, next, moved_at)
VALUES (:key_hash, CAST(CONVERT(:key USING utf8mb4) AS binary), :next, {clock})
ON DUPLICATE KEY UPDATE moved_at = CASE WHEN next < VALUES(next) THEN VALUES(moved_at) ELSE moved_at END,
                        next = greatest(next, VALUES(next))

-- name: inbox.order.heads -> rows
-- Keys of which something is held back: the lowest number that is, since when it is here, and the number expected.
SELECT {key_of_m}, h.position, t.next, h.key_hash, {age}
FROM (SELECT key_hash, min(position) AS position FROM {pending} FORCE INDEX ({pending_name}_pos)
      WHERE position IS NOT NULL GROUP BY key_hash) k
STRAIGHT_JOIN {pending} h FORCE INDEX ({pending_name}_pos)
  ON h.key_hash = k.key_hash AND h.position = k.position AND h.held
JOIN {message} m ON m.seq = h.seq
LEFT JOIN {state} t ON t.key_hash = h.key_hash AND t.aggregate_id = CAST(m.aggregate_id AS binary)

-- name: inbox.order.gaps -> rows
-- Every run of missing numbers: before the first that waits (compared with the state) and between two that wait; with
-- the seconds since the message behind it came, and the first dead letter in it. Reads pending rows only, by their
-- index, whatever was processed; messages and letters are looked up only for what is shown.
SELECT {key_of_m}, g.beginning, g.ending, {age}, {received},
       (SELECT d.seq FROM {dead} d WHERE d.key_hash = g.key_hash
        AND d.position BETWEEN g.beginning AND g.ending
        ORDER BY d.position LIMIT 1)
FROM (
  SELECT e.seq, e.key_hash, e.position - 1 AS ending,
         greatest(coalesce(e.previous + 1, t.next, :start), coalesce(t.next, e.previous + 1, :start)) AS beginning
  FROM (SELECT seq, key_hash, position, lag(position) OVER (PARTITION BY key_hash ORDER BY position) AS previous
        FROM {pending} FORCE INDEX ({pending_name}_pos) WHERE position >= 0) e
  LEFT JOIN {state} t ON t.key_hash = e.key_hash
  WHERE e.previous IS NULL OR e.position > e.previous + 1
  HAVING beginning <= ending
  ORDER BY e.seq LIMIT :limit) g
JOIN {message} m ON m.seq = g.seq
WHERE m.aggregate_id IS NOT NULL

-- name: inbox.order.history -> rows
-- Processed messages of keys that wait for a number: it may have been processed before there was an order, up to :until.
SELECT {key_of_m}, m.headers
FROM JSON_TABLE(CONVERT(:keys USING utf8mb4), '$[*]' COLUMNS (
  aggregate_id varchar(255) {text} PATH '$' ERROR ON ERROR)) k
JOIN {message} m ON CAST(m.aggregate_id AS binary) = CAST(k.aggregate_id AS binary) JOIN {done} f ON f.seq = m.seq
WHERE f.seq <= :until AND m.headers IS NOT NULL

-- name: inbox.order.raise -> count
-- These numbers were processed: their keys go on behind them. Never back.
INSERT INTO {state} (key_hash, aggregate_id, next, moved_at)
SELECT s.key_hash, CAST(s.aggregate_id AS binary), s.next, {clock}
FROM JSON_TABLE({rows}, '$[*]' COLUMNS (
  key_hash bigint PATH '$[0]', aggregate_id varchar(255) {text} PATH '$[1]' ERROR ON ERROR, next bigint PATH '$[2]')) s
ON DUPLICATE KEY UPDATE next = greatest({state}.next, VALUES(next)), moved_at = VALUES(moved_at)
