-- name: inbox.claim.pick -> rows
-- The longest-due rows. With :workers only the keys of one worker's share; keys that are :full are passed over.
SELECT seq, strikes FROM {pending}
WHERE due <= {clock} AND (:workers = 1 OR (key_hash >> 32) % :workers = :worker)
  AND key_hash NOT IN (SELECT value FROM json_each(:full))
ORDER BY due, seq LIMIT :limit

-- name: inbox.claim.ranked -> rows
-- The longest-due of one priority, with the seconds they have waited.
SELECT seq, {waited} FROM {pending}
WHERE priority = :priority AND due <= {clock} AND (:workers = 1 OR (key_hash >> 32) % :workers = :worker)
  AND key_hash NOT IN (SELECT value FROM json_each(:full))
ORDER BY due, seq LIMIT :limit

-- name: inbox.claim.read -> rows
-- A message row that somebody deleted still comes back (LEFT JOIN), so that its pending row can go.
SELECT p.seq, {claimed_columns}, p.attempts, p.key_hash, p.position, p.replayed,
       p.strikes, m.sender
FROM json_each(:seqs) s CROSS JOIN {pending} p ON p.seq = s.value AND p.token = :token
LEFT JOIN {message} m ON m.seq = p.seq

-- name: inbox.claim.read_raw -> rows
-- The same where one of the rows cannot be read as text.
SELECT p.seq, CAST(m.event_id AS blob), CAST(m.event_type AS blob), CAST(m.aggregate_type AS blob),
       CAST(m.aggregate_id AS blob), CAST(m.tenant_id AS blob), CAST(m.content_type AS blob), CAST({payload_in_room} AS blob),
       CAST({headers} AS blob), {raw_times}, p.attempts,
       CASE WHEN typeof(p.key_hash) = 'integer' THEN p.key_hash END,
       CASE WHEN typeof(p.position) = 'integer' THEN p.position END, p.replayed = 1, p.strikes, CAST(m.sender AS blob)
FROM json_each(:seqs) s CROSS JOIN {pending} p ON p.seq = s.value AND p.token = :token
LEFT JOIN {message} m ON m.seq = p.seq

-- name: inbox.claim.ours -> rows
SELECT seq FROM {held}

-- name: inbox.claim.hold_fast -> rows
-- What is ours. One writer at a time: nobody is processing while we ask.
SELECT seq FROM {held}

-- name: inbox.claim.abandon -> count
-- Claims that were made, perhaps, and never arrived: given back untried.
UPDATE {pending}
SET {untried}
WHERE token IN (SELECT value FROM json_each(:tokens)) AND owner = :owner

-- name: inbox.claim.next -> rows
-- Seconds until the next row is due; what is held back never is.
SELECT (due - {clock}) / 1000000.0 FROM {pending} WHERE due < {never} ORDER BY due LIMIT 1
