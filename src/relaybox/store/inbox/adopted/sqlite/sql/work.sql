-- name: inbox.adopt.turn -> rows
-- One writer at a time already.
SELECT 1

-- name: inbox.adopt.pick_up -> rows
-- An anti-join, not a cursor: a row is found whenever it comes.
INSERT INTO {map} (id, event_id, picked_at)
SELECT t.id, CAST(t.id AS text), {clock} FROM {theirs} t
WHERE t.processed_at IS NULL AND t.id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {map} m WHERE t.id = m.id)
ORDER BY {arrival} LIMIT :limit
ON CONFLICT DO NOTHING
RETURNING seq

-- name: inbox.adopt.picked -> rows
SELECT m.seq, m.event_id, m.event_type, NULL, m.aggregate_id, NULL, NULL, x'', m.headers, m.occurred_at, NULL,
       m.received_at, CAST(coalesce(t.retry_count, 0) AS integer), t.error
FROM json_each(:seqs) s CROSS JOIN {map} k ON k.seq = s.value JOIN {message} m ON m.seq = k.seq
JOIN {theirs} t ON t.id = k.id

-- name: inbox.adopt.pending -> count
INSERT INTO {pending} (seq, due, key_hash, position, priority, attempts, last_error)
SELECT json_extract(value, '$[0]'), {clock}, json_extract(value, '$[1]'), json_extract(value, '$[2]'),
       json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]')
FROM json_each(:rows) WHERE true
ON CONFLICT DO NOTHING

-- name: inbox.adopt.dead -> count
INSERT INTO {dead} (seq, key_hash, position, priority, replayed, attempts, last_error, dead_at)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
       json_extract(value, '$[3]'), 0, json_extract(value, '$[4]'), json_extract(value, '$[5]'), {clock}
FROM json_each(:rows) WHERE true
ON CONFLICT DO NOTHING

-- name: inbox.adopt.revived -> rows
-- Given up or processed once, and somebody has taken that back in their table: a replay.
SELECT m.event_id FROM {theirs} t JOIN {map} m ON t.id = m.id
WHERE t.processed_at IS NULL AND coalesce(t.retry_count, 0) < {most}
  AND NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.seq = m.seq)
LIMIT :limit

-- name: inbox.adopt.free -> rows
-- Whether they still wait. One writer at a time: nobody has locked anything.
SELECT m.seq, t.processed_at IS NULL
FROM json_each(:seqs) s CROSS JOIN {map} m ON m.seq = s.value JOIN {theirs} t ON t.id = m.id

-- name: inbox.adopt.there -> rows
SELECT m.seq FROM json_each(:seqs) s CROSS JOIN {map} m ON m.seq = s.value JOIN {theirs} t ON t.id = m.id

-- name: inbox.adopt.unprocessed -> rows
-- Which still wait.
SELECT m.seq FROM json_each(:seqs) s CROSS JOIN {map} m ON m.seq = s.value JOIN {theirs} t ON t.id = m.id
WHERE t.processed_at IS NULL

-- name: inbox.adopt.processed -> count
UPDATE {theirs} SET processed_at = {now}, error = NULL
WHERE id IN (SELECT m.id FROM {map} m WHERE m.seq {in_seqs}) AND processed_at IS NULL

-- name: inbox.adopt.report -> count
-- Their count of attempts and last error are ours. A dead letter has had all its attempts, whatever it died of.
UPDATE {theirs}
SET retry_count = (SELECT w.attempts FROM {map} m JOIN (SELECT seq, attempts FROM {pending} UNION ALL
                   SELECT seq, max(attempts, {most}) FROM {dead}) w ON w.seq = m.seq WHERE m.id = {theirs}.id),
    error = (SELECT w.last_error FROM {map} m JOIN (SELECT seq, last_error FROM {pending} UNION ALL
             SELECT seq, last_error FROM {dead}) w ON w.seq = m.seq WHERE m.id = {theirs}.id)
WHERE processed_at IS NULL AND id IN (
  SELECT m.id FROM {map} m WHERE m.seq {in_seqs}
    AND (m.seq IN (SELECT seq FROM {pending}) OR m.seq IN (SELECT seq FROM {dead})))

-- name: inbox.adopt.postpone -> count
UPDATE {pending} SET due = {clock} + 1000000 WHERE seq {in_seqs}

-- name: inbox.adopt.done -> count
INSERT INTO {done} (seq, processed_at, attempts, waited)
SELECT m.seq, {finished}, coalesce(t.retry_count, 0), max(({finished} - v.received_at) / 1000000.0, 0)
FROM json_each(:seqs) s CROSS JOIN {map} m ON m.seq = s.value JOIN {theirs} t ON t.id = m.id
JOIN {message} v ON v.seq = m.seq
WHERE t.processed_at IS NOT NULL
ON CONFLICT DO NOTHING

-- name: inbox.purge.message -> count
-- Their table is not ours to empty: we forget what waits no more. A discarded row waits, and is known to be given up.
DELETE FROM {map} WHERE seq {in_seqs}
  AND NOT EXISTS (SELECT 1 FROM {theirs} t WHERE t.id = {map}.id AND t.processed_at IS NULL)

-- name: inbox.adopt.recall -> rows
-- Rows that were processed or given up before we knew them.
INSERT INTO {map} (id, event_id, picked_at)
SELECT t.id, CAST(t.id AS text), {clock} FROM {theirs} t
WHERE t.id IN (SELECT value FROM json_each(:ids)) AND (t.processed_at IS NOT NULL OR t.retry_count >= {most})
  AND NOT EXISTS (SELECT 1 FROM {map} m WHERE t.id = m.id)
ON CONFLICT DO NOTHING
RETURNING seq

-- name: inbox.adopt.reset -> count
UPDATE {theirs} SET processed_at = NULL, retry_count = 0, error = NULL
WHERE id IN (SELECT m.id FROM {map} m WHERE m.event_id {in_ids})

-- name: inbox.adopt.waiting -> rows
-- Rows that wait and were not picked up yet.
SELECT count(*) FROM {theirs} t
WHERE t.processed_at IS NULL AND NOT EXISTS (SELECT 1 FROM {map} m WHERE t.id = m.id)

-- name: inbox.adopt.known -> rows
SELECT CAST(t.id AS text) FROM {theirs} t WHERE t.id IN (SELECT value FROM json_each(:ids))

-- name: inbox.adopt.seen -> rows
INSERT INTO {seen} (event_id, seen_at)
SELECT value, {clock} FROM json_each(:event_ids) WHERE true
ON CONFLICT DO NOTHING
RETURNING event_id

-- name: inbox.adopt.bury -> count
UPDATE {theirs} SET retry_count = :attempts, error = :error
WHERE id IN (SELECT value FROM json_each(:ids)) AND processed_at IS NULL
