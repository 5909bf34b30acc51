-- name: inbox.replay.pending -> count
-- Due at once, with fresh attempts. A number that has had its turn runs beside the sequence.
INSERT INTO {pending} (seq, due, key_hash, position, priority, replayed, attempts)
SELECT json_extract(value, '$[0]'), {clock}, json_extract(value, '$[1]'), json_extract(value, '$[2]'),
       json_extract(value, '$[3]'), 1, 0
FROM json_each(:rows) WHERE true
ON CONFLICT DO NOTHING
