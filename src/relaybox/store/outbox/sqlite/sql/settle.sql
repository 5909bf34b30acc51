-- name: outbox.settle.done -> count
-- Done means gone. The token is the fence: a claim that was taken over changes nothing.
DELETE FROM {pending} WHERE seq IN {held}

-- name: outbox.settle.retry -> count
-- With the attempts the claim counted, unless this one was nobody's fault.
UPDATE {pending} AS p
SET due = {clock} + CAST(round(r.delay * 1000000.0) AS integer), last_error = r.error,
    attempts = p.attempts - r.uncounted, token = NULL, owner = NULL, claimed_at = NULL, since = NULL
FROM (SELECT json_extract(value, '$[0]') AS seq, json_extract(value, '$[1]') AS token,
             json_extract(value, '$[2]') AS delay, json_extract(value, '$[3]') AS error,
             json_extract(value, '$[4]') AS uncounted
      FROM json_each(:rows)) AS r
WHERE p.seq = r.seq AND p.token = r.token

-- name: outbox.settle.dead -> count
-- One that is a dead letter already dies again, of what it died of now.
INSERT INTO {dead} (seq, key_hash, attempts, last_error, dead_at)
SELECT p.seq, p.key_hash, p.attempts, json_extract(r.value, '$[2]'), {clock}
FROM json_each(:rows) r CROSS JOIN {pending} p
  ON p.seq = json_extract(r.value, '$[0]') AND p.token = json_extract(r.value, '$[1]')
WHERE true
ON CONFLICT (seq) DO UPDATE
SET attempts = excluded.attempts, last_error = excluded.last_error, dead_at = excluded.dead_at

-- name: outbox.settle.hold -> count
-- The rest of the key waits for this row. Fenced like every settle: the row must still be ours.
INSERT INTO {hold} AS h (key_hash, seq, parked, since)
SELECT key_hash, seq, :parked, {clock} FROM {pending} WHERE seq IN {held}
ON CONFLICT (key_hash) DO UPDATE SET seq = excluded.seq, parked = excluded.parked
WHERE h.seq >= excluded.seq

-- name: outbox.settle.unhold -> count
-- A head that is about to be settled for good frees its key. Fenced too: a zombie's late success must not free a key
-- whose head somebody else is trying again.
DELETE FROM {hold} WHERE seq IN {held}
