-- name: inbox.adopt.turn -> rows
-- One writer at a time already.
SELECT 1

-- name: inbox.adopt.picked -> rows
SELECT m.seq, {id_of_m}, {type_of_m}, NULL, {key_of_m}, NULL, NULL, x'', {headers_of_m}, {raw_times},
       CAST(coalesce(t.retry_count, 0) AS integer), CAST(t.error AS blob), t.processed_at IS NOT NULL
FROM json_each(:seqs) s CROSS JOIN {map} k ON k.seq = s.value JOIN {message} m ON m.seq = k.seq
JOIN {theirs} t ON t.id = k.id

-- name: inbox.order.history -> rows
-- The same in their table, whichever program has processed them.
SELECT CAST({history_key} AS blob), CAST({history_headers} AS blob) FROM {theirs} t
WHERE t.processed_at IS NOT NULL AND {history_key} {in_keys} AND :until >= 0

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

-- name: inbox.adopt.done -> count
INSERT INTO {done} (seq, processed_at, attempts, waited)
SELECT m.seq, min(max(coalesce({finished}, m.picked_at), -62135596800000000), 253402300799999999),
       min(max(CAST(coalesce(t.retry_count, 0) AS integer), 0), 65535),
       min(max((coalesce({finished}, m.picked_at) - v.received_at) / 1000000.0, 0), 1e12)
FROM json_each(:seqs) s CROSS JOIN {map} m ON m.seq = s.value JOIN {theirs} t ON t.id = m.id
JOIN {message} v ON v.seq = m.seq
WHERE t.processed_at IS NOT NULL
ON CONFLICT DO NOTHING

-- name: inbox.adopt.reset -> count
UPDATE {theirs} SET processed_at = NULL, retry_count = 0, error = NULL
WHERE id IN (SELECT m.id FROM {map} m WHERE m.seq {in_seqs})

-- name: inbox.adopt.seen -> rows
INSERT INTO {seen} (event_id, sender, seen_at)
SELECT value, :sender, {clock} FROM json_each(:event_ids) WHERE true
ON CONFLICT DO NOTHING
RETURNING event_id
