-- name: inbox.claim.lock -> rows
SELECT t.seq, t.strikes FROM {pending_rows} WHERE {these} AND t.due <= {now_once} {skip_locked}

-- name: inbox.claim.take -> count
-- Attempts are counted here: a message that kills its process counts too.
UPDATE {pending_rows}
SET due = {clock} + {lease_time}, token = :token, owner = :owner,
    claimed_at = {clock}, attempts = attempts + 1, strikes = strikes + 1, held = false
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
