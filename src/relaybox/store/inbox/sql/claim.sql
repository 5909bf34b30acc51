-- name: inbox.claim.lock -> rows
SELECT t.seq, t.strikes FROM {pending_rows} WHERE {these} AND t.due <= {now_once} {skip_locked}

-- name: inbox.claim.take -> count
-- Attempts are counted here: a message that kills its process counts too.
UPDATE {pending_rows}
SET due = {clock} + {lease_time}, token = :token, owner = :owner,
    claimed_at = {clock}, attempts = {one_more}, strikes = {one_strike}, held = false
WHERE {these}

-- name: inbox.claim.renew -> count
UPDATE {pending_rows} SET due = {clock} + {lease_time} WHERE {these}

-- name: inbox.claim.release -> count
-- Given back untried: due at once, and the attempt that claiming counted is taken back.
UPDATE {pending_rows} SET {untried} WHERE {these}

-- name: inbox.claim.oldest -> rows
-- Seconds that the oldest due row has waited; no row when nothing is due.
SELECT {waited} FROM {pending}
WHERE due <= {now_once} ORDER BY due, seq LIMIT 1

-- name: inbox.claim.sizes -> rows
-- Of messages whose payload a claim has left here: how large it and the headers are, and whether the row is one at all.
SELECT m.seq, {size}(m.payload), {size}(m.headers), m.event_id IS NOT NULL AND m.event_type IS NOT NULL
FROM {message} m WHERE m.seq {in_seqs}

-- name: inbox.claim.payloads -> rows
SELECT m.seq, {whole_payload} FROM {message} m WHERE m.seq {in_seqs}
