-- name: inbox.claim.pick -> rows
-- The longest-due rows, locked; others pass over them. With :workers only the keys of one worker's share; keys that
-- are :full are passed over. FORCE INDEX, because a sort would lock the whole table.
SELECT seq, strikes FROM {pending} FORCE INDEX ({pending_name}_due)
WHERE due <= {clock} AND (:workers = 1 OR (key_hash >> 32) % :workers = :worker)
  AND NOT json_contains(:full, cast(key_hash AS char))
ORDER BY due, seq LIMIT :limit {skip_locked}

-- name: inbox.claim.ranked -> rows
-- The longest-due of one priority, with the seconds they have waited. Nothing is locked: what is chosen among several
-- priorities is locked after.
SELECT seq, {waited} FROM {pending} FORCE INDEX ({pending_name}_prio)
WHERE priority = :priority AND due <= {clock} AND (:workers = 1 OR (key_hash >> 32) % :workers = :worker)
  AND NOT json_contains(:full, cast(key_hash AS char))
ORDER BY due, seq LIMIT :limit

-- name: inbox.claim.read -> rows
-- A message row that somebody deleted still comes back (LEFT JOIN), so that its pending row can go.
SELECT p.seq, {claimed_columns}, p.attempts, p.key_hash, p.position, p.replayed,
       p.strikes, m.sender
FROM {seqs} STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = s.seq AND p.token = :token
LEFT JOIN {message} m ON m.seq = p.seq

-- name: inbox.claim.ours -> rows
-- Rows that are being processed count: their deletion is not committed.
SELECT p.seq FROM {held} STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = s.seq AND p.token = s.token

-- name: inbox.claim.hold_fast -> rows
-- Locks what is ours and nobody is processing: a transaction under way decides by itself, and is not waited for.
SELECT p.seq FROM {held} STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = s.seq AND p.token = s.token
{skip_locked}

-- name: inbox.claim.abandon -> count
-- Claims that were made, perhaps, and never arrived: given back untried. One table only: such an UPDATE passes over
-- locked rows of others without waiting.
UPDATE {pending}
SET {untried}
WHERE owner = :owner AND JSON_CONTAINS(:tokens, CAST(token AS char))

-- name: inbox.claim.next -> rows
-- Seconds until the next row is due; what is held back never is.
SELECT timestampdiff(MICROSECOND, {clock}, due) / 1000000e0 FROM {pending} WHERE due < {never} ORDER BY due LIMIT 1
