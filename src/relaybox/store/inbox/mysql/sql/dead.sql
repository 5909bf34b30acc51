-- name: inbox.replay.find -> rows
SELECT m.seq FROM JSON_TABLE(CONVERT(:event_ids USING utf8mb4), '$[*]' COLUMNS (
  event_id varchar(768) {text} PATH '$' ERROR ON ERROR)) s
STRAIGHT_JOIN {message} m ON m.event_id = s.event_id

-- name: inbox.replay.done -> rows
-- Locked before it is read: a purge passes over it, and one that was first is waited for.
SELECT t.seq FROM {seqs} STRAIGHT_JOIN {done} t FORCE INDEX (PRIMARY) ON t.seq = s.seq ORDER BY t.seq FOR UPDATE

-- name: inbox.replay.dead -> rows
SELECT t.seq FROM {seqs} STRAIGHT_JOIN {dead} t FORCE INDEX (PRIMARY) ON t.seq = s.seq ORDER BY t.seq FOR UPDATE

-- name: inbox.replay.read -> rows
-- Of these ids the messages that are dead or processed. Their payloads stay where they are.
SELECT m.seq, {without_payload}, d.seq IS NOT NULL, f.seq IS NOT NULL
FROM JSON_TABLE(CONVERT(:event_ids USING utf8mb4), '$[*]' COLUMNS (
  event_id varchar(255) {text} PATH '$' ERROR ON ERROR)) s
STRAIGHT_JOIN {message} m ON m.event_id = s.event_id
LEFT JOIN {dead} d ON d.seq = m.seq LEFT JOIN {done} f ON f.seq = m.seq
WHERE CAST(m.event_id AS binary) = CAST(s.event_id AS binary) AND (d.seq IS NOT NULL OR f.seq IS NOT NULL)
ORDER BY m.seq

-- name: inbox.replay.pending -> count
-- Due at once, with fresh attempts. A number that has had its turn runs beside the sequence.
INSERT IGNORE INTO {pending} (seq, due, key_hash, position, priority, replayed, attempts)
SELECT r.seq, {clock}, r.key_hash, r.position, r.priority, true, 0
FROM JSON_TABLE({rows}, '$[*]' COLUMNS (seq bigint PATH '$[0]', key_hash bigint PATH '$[1]',
                                        position bigint PATH '$[2]', priority smallint PATH '$[3]')) r

-- name: inbox.replay.undone -> count
DELETE t FROM {seqs} STRAIGHT_JOIN {done} t FORCE INDEX (PRIMARY) ON t.seq = s.seq

-- name: inbox.replay.undead -> count
DELETE t FROM {seqs} STRAIGHT_JOIN {dead} t FORCE INDEX (PRIMARY) ON t.seq = s.seq

-- name: inbox.purge.message -> count
DELETE t FROM {seqs} STRAIGHT_JOIN {message} t FORCE INDEX (PRIMARY) ON t.seq = s.seq
