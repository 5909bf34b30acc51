-- name: outbox.claim.pick -> rows
-- The longest-due rows: new, retried and expired alike, from the index on (due, seq).
SELECT seq FROM {pending} WHERE due <= {clock} ORDER BY due, seq LIMIT :limit

-- name: outbox.claim.shards -> rows
-- The shards this instance owns now, and whether any key is held.
SELECT shard, EXISTS (SELECT 1 FROM {hold}) FROM {shard} WHERE owner = :owner AND until > {clock}

-- name: outbox.claim.ordered -> rows
-- For ordered delivery: only shards of `:mine`, and no row behind a held head. By seq, not by due: a row
-- that was given back is due later than its successors and must still go before them. Nor does the clock decide over
-- what waits for no time ({ready}): it may have been set back.
SELECT p.seq FROM {pending} p
WHERE {ready}
  AND (p.key_hash >> 32) % :shards IN (SELECT value FROM json_each(:mine))
  AND NOT EXISTS (SELECT 1 FROM {hold} h WHERE h.key_hash = p.key_hash
                  AND (h.seq < p.seq OR (h.seq = p.seq AND h.parked)))
ORDER BY p.seq
LIMIT :limit

-- name: outbox.claim.take -> count
UPDATE {pending}
SET since = coalesce(since, due), due = {clock} + {lease_time}, token = :token, owner = :owner, claimed_at = {clock},
    attempts = {one_more}
WHERE seq {in_seqs}

-- name: outbox.claim.read -> rows
-- An event row that somebody deleted still comes back (LEFT JOIN), so that its pending row can be settled.
SELECT p.seq, {claimed_columns}, p.attempts
FROM json_each(:seqs) s CROSS JOIN {pending} p ON p.seq = s.value AND p.token = :token
LEFT JOIN {event} e ON e.seq = p.seq

-- name: outbox.claim.read_raw -> rows
-- The same where one of the rows cannot be read as text.
SELECT p.seq, {raw_head}, CAST({payload_in_room} AS blob), {raw_headers}, {raw_times}, p.attempts
FROM json_each(:seqs) s CROSS JOIN {pending} p ON p.seq = s.value AND p.token = :token
LEFT JOIN {event} e ON e.seq = p.seq

-- name: outbox.claim.verify -> rows
-- Which rows of a hand-over exist: one whose savepoint was rolled back does not.
SELECT seq FROM {held}

-- name: outbox.claim.renew -> count
UPDATE {pending} SET due = {clock} + {lease_time} WHERE seq IN {held}

-- name: outbox.claim.release -> count
-- Given back untried: due at once, and the attempt that claiming counted is taken back.
UPDATE {pending}
SET due = {clock}, token = NULL, owner = NULL, claimed_at = NULL, attempts = {greatest}(attempts - 1, 0)
WHERE seq IN {held}

-- name: outbox.claim.abandon -> count
-- Claims that were made, perhaps, and never arrived: given back untried.
UPDATE {pending}
SET due = {clock}, token = NULL, owner = NULL, claimed_at = NULL, attempts = {greatest}(attempts - 1, 0)
WHERE token IN (SELECT value FROM json_each(:tokens))

-- name: outbox.claim.estranged -> count
-- What this owner has and does not know of: a crash may have forgotten that it was settled.
UPDATE {pending} SET due = {clock}, token = NULL, owner = NULL, claimed_at = NULL
WHERE owner = :owner AND token NOT IN (SELECT value FROM json_each(:tokens))
  AND seq NOT IN (SELECT value FROM json_each(:seqs))

-- name: outbox.claim.oldest -> rows
-- Seconds since the oldest event became due that is not settled: it waits, or somebody has claimed it; NULL when there
-- is none. Of those that wait the longest due one tells; the claimed ones are next in the same index, by the end of their
-- lease.
SELECT ({clock} - min(since)) / 1000000.0 FROM (
  SELECT since FROM (SELECT min(coalesce(since, due), due, {clock}) AS since FROM {pending} WHERE due <= {clock}
                     ORDER BY due, seq LIMIT 1)
  UNION ALL
  SELECT min(since, {clock}) FROM (SELECT since, owner FROM {pending} WHERE due > {clock} ORDER BY due LIMIT 5000)
  WHERE owner IS NOT NULL)

-- name: outbox.claim.next -> rows
-- Seconds until the next row is due, so that an idle poller can sleep exactly that long.
SELECT (due - {clock}) / 1000000.0 FROM {pending} ORDER BY due LIMIT 1
