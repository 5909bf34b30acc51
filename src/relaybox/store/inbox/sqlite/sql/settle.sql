-- name: inbox.settle.mark -> count
-- Processed, in the transaction of the effect. No row: the claim was lost, and nothing may be done.
INSERT INTO {done} (seq, processed_at, attempts, waited)
SELECT seq, {clock}, attempts, ({clock} - :received) / 1000000.0 FROM {pending} WHERE seq = :seq AND token = :token
{done_again}

-- name: inbox.settle.lock -> rows
-- Of a batch what is still ours.
SELECT seq FROM {held}

-- name: inbox.settle.mark_all -> count
-- The same for what a batch has done.
INSERT INTO {done} (seq, processed_at, attempts, waited)
SELECT p.seq, {clock}, p.attempts, coalesce({age}, 0)
FROM {pending} p LEFT JOIN {message} m ON m.seq = p.seq WHERE p.seq IN {held}
{done_again}

-- name: inbox.settle.retry -> count
UPDATE {pending} AS p
SET due = {clock} + CAST(round(r.delay * 1000000.0) AS integer), last_error = r.error,
    attempts = p.attempts - r.uncounted, strikes = 0, token = NULL, owner = NULL, claimed_at = NULL
FROM (SELECT json_extract(value, '$[0]') AS seq, json_extract(value, '$[1]') AS delay,
             json_extract(value, '$[2]') AS error, json_extract(value, '$[3]') AS uncounted
      FROM json_each(:rows)) AS r
WHERE p.seq = r.seq

-- name: inbox.settle.dead -> count
INSERT INTO {dead} (seq, key_hash, position, priority, replayed, attempts, last_error, dead_at)
SELECT p.seq, p.key_hash, p.position, p.priority, p.replayed, p.attempts, json_extract(r.value, '$[1]'), {clock}
FROM json_each(:rows) r CROSS JOIN {pending} p ON p.seq = json_extract(r.value, '$[0]')
WHERE true
ON CONFLICT (seq) DO UPDATE
SET attempts = excluded.attempts, last_error = excluded.last_error, dead_at = excluded.dead_at, told = 0
