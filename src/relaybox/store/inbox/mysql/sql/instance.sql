-- name: inbox.instance.owned -> rows
-- What dead instances had claimed. Rows that a transaction has locked are its own business: it commits or rolls back,
-- and then the lease runs out.
SELECT seq FROM {pending} WHERE owner IS NOT NULL AND JSON_CONTAINS(:owners, CAST(owner AS char))
{skip_locked}

-- name: inbox.instance.free -> count
-- Due at once; the tokens go, so a zombie cannot mark anything.
UPDATE {seqs} STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = s.seq
SET p.due = {clock}, p.token = NULL, p.owner = NULL, p.claimed_at = NULL
