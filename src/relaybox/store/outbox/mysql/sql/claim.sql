-- name: outbox.claim.pick -> rows
-- The longest-due rows, locked; others pass over them. FORCE INDEX, because a sort would lock the whole table.
SELECT seq FROM {pending} FORCE INDEX ({pending_name}_due)
WHERE due <= {clock} ORDER BY due, seq LIMIT :limit {skip_locked}

-- name: outbox.claim.shards -> rows
-- The shards this instance owns now, and whether any key is held; none while somebody has leased keys (another
-- strategy). The shared lock makes a take-over wait for this claim, so it will see and free the rows.
SELECT shard, EXISTS (SELECT 1 FROM {hold}) FROM {shard}
WHERE owner = :owner AND until > {clock} AND NOT EXISTS (SELECT 1 FROM {lease}) LOCK IN SHARE MODE

-- name: outbox.claim.ordered -> rows
-- For ordered delivery: only shards of `:mine`, and no row behind a held head. Without row locks: a locking
-- scan touches other instances' rows on its way, and one that skipped such a row would take the next of the
-- same key before it. The shared locks on the shards keep competitors away instead. By seq, not by due: a
-- row that was given back is due later than its successors and must still go before them. Nor does the clock decide over
-- what waits for no time ({ready}): it may have been set back.
SELECT p.seq FROM {pending} p
WHERE {ready}
  AND JSON_CONTAINS(:mine, CAST((p.key_hash >> 32) % :shards AS char))
  AND NOT EXISTS (SELECT 1 FROM {hold} h WHERE h.key_hash = p.key_hash
                  AND (h.seq < p.seq OR (h.seq = p.seq AND h.parked)))
ORDER BY p.seq
LIMIT :limit

-- name: outbox.claim.take -> count
-- Whether they may be claimed is asked again: an ordered pick has not locked its rows. FORCE INDEX, or a small table
-- might be read by that, and the rows that others have locked with it. `since` is set first: it looks at the old `due`.
UPDATE {seqs} STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = s.seq
SET p.since = greatest(coalesce(p.since, p.due), {first_time}), p.due = {clock} + {lease_time}, p.token = :token,
    p.owner = :owner, p.claimed_at = {clock}, p.attempts = {one_more}
WHERE {ready}

-- name: outbox.claim.read -> rows
-- By the token of this claim, never by owner: an owner holds rows of earlier claims too. An event row that
-- somebody deleted still comes back (LEFT JOIN), so that its pending row can be settled.
SELECT p.seq, {claimed_columns}, p.attempts, p.key_hash
FROM {seqs} STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = s.seq AND p.token = :token
LEFT JOIN {event} e ON e.seq = p.seq

-- name: outbox.claim.verify -> rows
-- Which rows of a hand-over exist: one whose savepoint was rolled back does not.
SELECT p.seq FROM {held} STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = s.seq AND p.token = s.token

-- name: outbox.claim.renew -> count
UPDATE {held} STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = s.seq AND p.token = s.token
SET p.due = {clock} + {lease_time}

-- name: outbox.claim.release -> count
-- Given back untried: due at once, and the attempt that claiming counted is taken back.
UPDATE {held} STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = s.seq AND p.token = s.token
SET p.due = {clock}, p.token = NULL, p.owner = NULL, p.claimed_at = NULL,
    p.attempts = greatest(p.attempts - 1, 0)

-- name: outbox.claim.abandon -> count
-- Claims that were made, perhaps, and never arrived: given back untried. One table only, as in outbox.instance.free.
UPDATE {pending}
SET due = {clock}, token = NULL, owner = NULL, claimed_at = NULL, attempts = {greatest}(attempts - 1, 0)
WHERE token IS NOT NULL AND JSON_CONTAINS(:tokens, CAST(token AS char))

-- name: outbox.claim.estranged -> count
-- What this owner has and does not know of: a fail-over forgot that it was settled. One table only, as in
-- outbox.instance.free.
UPDATE {pending} SET due = {clock}, token = NULL, owner = NULL, claimed_at = NULL
WHERE owner = :owner AND NOT JSON_CONTAINS(:tokens, CAST(token AS char))
  AND NOT JSON_CONTAINS(:seqs, CAST(seq AS char))

-- name: outbox.claim.oldest -> rows
-- Seconds since the oldest event became due that is not settled: it waits, or somebody has claimed it; NULL when there
-- is none. Of those that wait the longest due one tells; the claimed ones are next in the same index, by the end of their
-- lease.
SELECT greatest(timestampdiff(MICROSECOND, min(a.since), {clock}), 0) / 1000000e0 FROM (
  (SELECT least(coalesce(since, due), due) AS since FROM {pending} FORCE INDEX ({pending_name}_due)
   WHERE due <= {clock} ORDER BY due, seq LIMIT 1)
  UNION ALL
  (SELECT c.since FROM (SELECT since, owner FROM {pending} FORCE INDEX ({pending_name}_due)
                        WHERE due > {clock} ORDER BY due LIMIT 5000) c
   WHERE c.owner IS NOT NULL)) a

-- name: outbox.claim.next -> rows
-- Seconds until the next row is due, so that an idle poller can sleep exactly that long.
SELECT timestampdiff(MICROSECOND, {clock}, due) / 1000000e0 FROM {pending} ORDER BY due LIMIT 1
