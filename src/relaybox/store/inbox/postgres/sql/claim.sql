-- name: inbox.claim -> rows
-- Pick, take and read in one round trip, where neither numbers nor priorities decide. What :suspect claims have left
-- without an outcome goes alone. The longest-due rows, locked; others pass over them. With :workers only the keys of one
-- worker's share. The scalar subquery lets the index on (due, seq) bound the scan: clock_timestamp() alone is volatile.
-- The commit does not wait for the disk: a claim lost in a crash leaves the messages waiting, and the commit of an effect
-- does wait. Attempts are counted here: a message that kills its process counts too. A message row that somebody deleted
-- still comes back (LEFT JOIN), so that its pending row can go.
WITH clock AS MATERIALIZED (
  SELECT {clock} AS now, set_config('synchronous_commit', 'off', true)),
picked AS MATERIALIZED (
  SELECT seq, due, strikes FROM {pending}
  WHERE due <= (SELECT now FROM clock)
    AND (:workers::bigint = 1 OR (key_hash >> 32) % :workers::bigint = :worker::bigint)
  ORDER BY due, seq LIMIT :limit
  {skip_locked}),
head AS MATERIALIZED (
  SELECT seq, strikes FROM picked ORDER BY due, seq LIMIT 1),
taken AS (
  UPDATE {pending} p
  SET due = (SELECT now FROM clock) + {lease_time}, token = :token, owner = :owner,
      claimed_at = (SELECT now FROM clock), attempts = least(greatest(p.attempts, 0), 65534) + 1,
      strikes = least(greatest(p.strikes, 0), 65534) + 1, held = false
  FROM picked k
  WHERE p.seq = k.seq AND CASE WHEN (SELECT strikes FROM head) < :suspect THEN k.strikes < :suspect
                               ELSE k.seq = (SELECT seq FROM head) END
  RETURNING k.due, p.seq, p.attempts, p.key_hash, p.position, p.replayed, p.strikes)
SELECT t.seq, {claimed_columns}, t.attempts, t.key_hash, t.position, t.replayed,
       t.strikes, m.sender
FROM taken t LEFT JOIN {message} m ON m.seq = t.seq
ORDER BY t.due, t.seq

-- name: inbox.claim.pick -> rows
-- The same in steps: numbers or priorities decide in between, or the rows are somebody else's table. Keys that are :full
-- are passed over.
WITH clock AS MATERIALIZED (
  SELECT {clock} AS now, set_config('synchronous_commit', 'off', true))
SELECT seq, strikes FROM {pending}
WHERE due <= (SELECT now FROM clock)
  AND (:workers::bigint = 1 OR (key_hash >> 32) % :workers::bigint = :worker::bigint)
  AND key_hash <> ALL(:full::bigint[])
ORDER BY due, seq LIMIT :limit
{skip_locked}

-- name: inbox.claim.ranked -> rows
-- The longest-due of one priority, with the seconds they have waited. Nothing is locked: what is chosen among several
-- priorities is locked after.
SELECT seq, {waited} FROM {pending}
WHERE priority = :priority AND due <= {now_once}
  AND (:workers::bigint = 1 OR (key_hash >> 32) % :workers::bigint = :worker::bigint)
  AND key_hash <> ALL(:full::bigint[])
ORDER BY due, seq LIMIT :limit

-- name: inbox.claim.read -> rows
SELECT p.seq, {claimed_columns}, p.attempts, p.key_hash, p.position, p.replayed,
       p.strikes, m.sender
FROM {pending} p LEFT JOIN {message} m ON m.seq = p.seq
WHERE p.seq {in_seqs} AND p.token = :token

-- name: inbox.claim.ours -> rows
-- Rows that are being processed count: their deletion is not committed.
SELECT p.seq FROM unnest(:seqs::bigint[], :tokens::bigint[]) AS s(seq, token)
JOIN {pending} p ON p.seq = s.seq AND p.token = s.token

-- name: inbox.claim.hold_fast -> rows
-- Locks what is ours and nobody is processing: a transaction under way decides by itself, and is not waited for.
SELECT p.seq FROM unnest(:seqs::bigint[], :tokens::bigint[]) AS s(seq, token)
JOIN {pending} p ON p.seq = s.seq AND p.token = s.token
FOR UPDATE OF p SKIP LOCKED

-- name: inbox.claim.abandon -> count
-- Claims that were made, perhaps, and never arrived: given back untried.
UPDATE {pending}
SET {untried}
WHERE token = ANY(:tokens::bigint[]) AND owner = :owner

-- name: inbox.claim.next -> rows
-- Seconds until the next row is due; what is held back never is.
SELECT extract(epoch FROM least(greatest(due, {first_time}), {last_time}) - {clock})::float8 FROM {pending}
WHERE due < {never} ORDER BY due LIMIT 1
