-- name: inbox.instance.owned -> rows
-- What dead instances had claimed.
SELECT seq FROM {pending} WHERE owner IN (SELECT value FROM json_each(:owners))

-- name: inbox.instance.free -> count
-- Due at once; the tokens go, so a zombie cannot mark anything.
UPDATE {pending} SET due = {clock}, token = NULL, owner = NULL, claimed_at = NULL WHERE seq IN {seqs}
