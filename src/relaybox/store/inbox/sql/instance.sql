-- name: inbox.instance.owned -> rows
-- What dead instances had claimed. Rows that a transaction has locked are its own business: it commits or rolls back,
-- and then the lease runs out.
SELECT seq FROM {pending} WHERE owner {in_owners} {skip_locked}

-- name: inbox.instance.free -> count
-- Due at once; the tokens go, so a zombie cannot mark anything.
UPDATE {pending_rows} SET due = {clock}, token = NULL, owner = NULL, claimed_at = NULL WHERE {these}
