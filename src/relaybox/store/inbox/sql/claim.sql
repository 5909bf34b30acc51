-- name: inbox.claim.lock -> rows
SELECT seq, strikes FROM {pending}
WHERE seq {in_seqs} AND due <= {now_once}
{skip_locked}

-- name: inbox.claim.take -> count
-- Attempts are counted here: a message that kills its process counts too.
UPDATE {pending}
SET due = {clock} + {lease_time}, token = :token, owner = :owner,
    claimed_at = {clock}, attempts = attempts + 1, strikes = strikes + 1, held = false
WHERE seq {in_seqs}

-- name: inbox.claim.renew -> count
UPDATE {pending} SET due = {clock} + {lease_time}
WHERE seq {in_seqs}

-- name: inbox.claim.release -> count
-- Given back untried: due at once, and the attempt that claiming counted is taken back.
UPDATE {pending}
SET {untried}
WHERE seq {in_seqs}

-- name: inbox.claim.oldest -> rows
-- Seconds that the oldest due row has waited; no row when nothing is due.
SELECT {waited} FROM {pending}
WHERE due <= {now_once} ORDER BY due, seq LIMIT 1
