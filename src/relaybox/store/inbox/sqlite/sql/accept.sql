-- name: inbox.accept.seen -> rows
-- Answers the ids that are new. One writer at a time: who else accepts them waits until our transaction has ended.
INSERT INTO {seen} (event_id, sender, seen_at)
SELECT value, :sender, {clock} FROM json_each(:event_ids) WHERE true
ON CONFLICT DO NOTHING
RETURNING event_id

-- name: inbox.accept.message -> rows
-- ORDER BY keeps the list order in the numbers, and substr cuts each payload out of the one BLOB by bytes (and says
-- NULL when that is empty as a whole).
INSERT INTO {message} ({event_fields}, sender, received_at)
SELECT json_extract(value, '$.event_id'), json_extract(value, '$.event_type'),
       json_extract(value, '$.aggregate_type'), json_extract(value, '$.aggregate_id'),
       json_extract(value, '$.tenant_id'), json_extract(value, '$.content_type'),
       coalesce(substr(:payloads, json_extract(value, '$.start'), json_extract(value, '$.size')), x''),
       json_extract(value, '$.headers'), json_extract(value, '$.occurred_at'), :sender, {clock}
FROM json_each(:rows) WHERE true ORDER BY key
RETURNING seq

-- name: inbox.accept.pending -> count
INSERT INTO {pending} (seq, due, key_hash, position, priority, attempts)
SELECT json_extract(value, '$[0]'), {clock}, json_extract(value, '$[1]'), json_extract(value, '$[2]'),
       json_extract(value, '$[3]'), 0
FROM json_each(:rows)
