-- name: inbox.adopt.pick_up -> rows
-- An anti-join, not a cursor: a row that commits late is found whenever it comes. A SELECT of its own: an INSERT … SELECT
-- would lock what it reads, and wait for everybody who is inserting.
SELECT CONVERT(t.id USING utf8mb4) FROM {open} t LEFT JOIN {map} m ON m.id = t.id
WHERE m.seq IS NULL
ORDER BY {arrival} LIMIT :limit

-- name: inbox.adopt.enter -> count
INSERT INTO {map} (id, event_id, token, picked_at)
SELECT {id_value}, s.event_id, :token, {clock}
FROM JSON_TABLE(CONVERT(:ids USING utf8mb4), '$[*]' COLUMNS (
  ord FOR ORDINALITY, id {id_json} PATH '$' ERROR ON ERROR, event_id varchar(768) {text} PATH '$' ERROR ON ERROR)) s
ORDER BY s.ord
ON DUPLICATE KEY UPDATE seq = {map}.seq

-- name: inbox.adopt.entered -> rows
SELECT seq FROM {map} WHERE token = :token

-- name: inbox.adopt.picked -> rows
SELECT m.seq, m.event_id, m.event_type, NULL, m.aggregate_id, NULL, NULL, '', m.headers, m.occurred_at, NULL,
       m.received_at, coalesce(t.retry_count, 0), t.error, t.processed_at IS NOT NULL
FROM {seqs} STRAIGHT_JOIN {map} k FORCE INDEX (PRIMARY) ON k.seq = s.seq JOIN {message} m ON m.seq = k.seq JOIN {theirs} t ON t.id = k.id

-- name: inbox.adopt.pending -> count
INSERT IGNORE INTO {pending} (seq, due, key_hash, position, priority, attempts, last_error)
SELECT r.seq, {clock}, r.key_hash, r.position, r.priority, r.attempts, r.reason
FROM JSON_TABLE({rows}, '$[*]' COLUMNS (
  seq bigint PATH '$[0]', key_hash bigint PATH '$[1]', position bigint PATH '$[2]', priority smallint PATH '$[3]',
  attempts integer PATH '$[4]', reason text {text} PATH '$[5]')) r

-- name: inbox.adopt.dead -> count
INSERT IGNORE INTO {dead} (seq, key_hash, position, priority, replayed, attempts, last_error, dead_at)
SELECT r.seq, r.key_hash, r.position, r.priority, false, r.attempts, r.reason, {clock}
FROM JSON_TABLE({rows}, '$[*]' COLUMNS (
  seq bigint PATH '$[0]', key_hash bigint PATH '$[1]', position bigint PATH '$[2]', priority smallint PATH '$[3]',
  attempts integer PATH '$[4]', reason text {text} PATH '$[5]')) r

-- name: inbox.adopt.revived -> rows
-- Given up or processed once, and somebody has taken that back in their table: a replay.
SELECT m.seq FROM {open} t JOIN {map} m ON m.id = t.id LEFT JOIN {pending} p ON p.seq = m.seq
WHERE coalesce(t.retry_count, 0) < {most} AND p.seq IS NULL LIMIT :limit

-- name: inbox.adopt.free -> rows
-- Which nobody has locked in their table, now locked by us; and whether they still wait.
SELECT m.seq, t.processed_at IS NULL
FROM {seqs} STRAIGHT_JOIN {map} m FORCE INDEX (PRIMARY) ON m.seq = s.seq STRAIGHT_JOIN {theirs} t ON t.id = m.id
{skip_locked}

-- name: inbox.adopt.there -> rows
SELECT m.seq FROM {seqs} STRAIGHT_JOIN {map} m FORCE INDEX (PRIMARY) ON m.seq = s.seq STRAIGHT_JOIN {theirs} t ON t.id = m.id

-- name: inbox.adopt.unprocessed -> rows
-- Which still wait. In the transaction of the effect: who is at them is waited for.
SELECT m.seq FROM {seqs} STRAIGHT_JOIN {map} m FORCE INDEX (PRIMARY) ON m.seq = s.seq STRAIGHT_JOIN {theirs} t ON t.id = m.id
WHERE t.processed_at IS NULL FOR UPDATE

-- name: inbox.adopt.processed -> count
UPDATE {seqs} STRAIGHT_JOIN {map} m FORCE INDEX (PRIMARY) ON m.seq = s.seq STRAIGHT_JOIN {theirs} t ON t.id = m.id
SET t.processed_at = {now}, t.error = NULL
WHERE t.processed_at IS NULL

-- name: inbox.adopt.report -> count
-- Their count of attempts and last error are ours. A dead letter has had all its attempts, whatever it died of.
UPDATE {seqs} STRAIGHT_JOIN {map} m FORCE INDEX (PRIMARY) ON m.seq = s.seq STRAIGHT_JOIN {theirs} t ON t.id = m.id
LEFT JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = m.seq
LEFT JOIN {dead} d FORCE INDEX (PRIMARY) ON d.seq = m.seq
SET t.retry_count = coalesce(p.attempts, greatest(d.attempts, {most})), t.error = {last_error}
WHERE t.processed_at IS NULL AND (p.seq IS NOT NULL OR d.seq IS NOT NULL)

-- name: inbox.adopt.done -> count
INSERT IGNORE INTO {done} (seq, processed_at, attempts, waited)
SELECT m.seq, {finished}, least(greatest(coalesce(t.retry_count, 0), 0), 65535),
       greatest(timestampdiff(MICROSECOND, v.received_at, {finished}) / 1000000e0, 0)
FROM {seqs} STRAIGHT_JOIN {map} m FORCE INDEX (PRIMARY) ON m.seq = s.seq JOIN {theirs} t ON t.id = m.id JOIN {message} v ON v.seq = m.seq
WHERE t.processed_at IS NOT NULL

-- name: inbox.adopt.unknown -> count
DELETE m FROM {seqs} STRAIGHT_JOIN {map} m FORCE INDEX (PRIMARY) ON m.seq = s.seq

-- name: inbox.purge.message -> count
-- Their table is not ours to empty: we forget what waits no more. A discarded row waits, and is known to be given up.
DELETE m FROM {seqs} STRAIGHT_JOIN {map} m FORCE INDEX (PRIMARY) ON m.seq = s.seq LEFT JOIN {theirs} t ON t.id = m.id
WHERE t.id IS NULL OR t.processed_at IS NOT NULL

-- name: inbox.adopt.recall -> rows
-- Rows that somebody asks for, and that are new here.
SELECT CONVERT(t.id USING utf8mb4)
FROM JSON_TABLE(CONVERT(:ids USING utf8mb4), '$[*]' COLUMNS (id {id_json} PATH '$')) s
STRAIGHT_JOIN {theirs} t ON t.id = {id_value} LEFT JOIN {map} m ON m.id = t.id
WHERE m.seq IS NULL

-- name: inbox.adopt.reset -> count
UPDATE {seqs} STRAIGHT_JOIN {map} m FORCE INDEX (PRIMARY) ON m.seq = s.seq STRAIGHT_JOIN {theirs} t ON t.id = m.id
SET t.processed_at = NULL, t.retry_count = 0, t.error = NULL

-- name: inbox.adopt.waiting -> rows
-- Rows that wait and were not picked up yet.
SELECT count(*) FROM (SELECT 1 FROM {open} t LEFT JOIN {map} m ON m.id = t.id WHERE m.seq IS NULL LIMIT 10001) x

-- name: inbox.adopt.known -> rows
SELECT CONVERT(t.id USING utf8mb4)
FROM JSON_TABLE(CONVERT(:ids USING utf8mb4), '$[*]' COLUMNS (id {id_json} PATH '$')) s
STRAIGHT_JOIN {theirs} t ON t.id = {id_value}

-- name: inbox.adopt.bury -> count
UPDATE JSON_TABLE(CONVERT(:ids USING utf8mb4), '$[*]' COLUMNS (id {id_json} PATH '$')) s
STRAIGHT_JOIN {theirs} t ON t.id = {id_value}
SET t.retry_count = :attempts, t.error = {given_error}
WHERE t.processed_at IS NULL

-- name: inbox.order.history -> rows
-- The same in their table, whichever program has processed them.
SELECT {history_key}, {history_headers}
FROM JSON_TABLE(CONVERT(:keys USING utf8mb4), '$[*]' COLUMNS (k varchar(255) {text} PATH '$' ERROR ON ERROR)) k
JOIN {theirs} t ON CAST({history_key} AS binary) = CAST(k.k AS binary)
WHERE t.processed_at IS NOT NULL AND :until >= 0
