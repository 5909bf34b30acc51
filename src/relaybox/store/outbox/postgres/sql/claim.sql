-- name: outbox.claim -> rows
-- Moves due work into one claim: the oldest waiting batch (or its first part), then single rows, longest due
-- first. A batch takes at most half of the limit while single rows wait, so neither starves the other.
-- MATERIALIZED, or a nested-loop plan may take more than the limit. The scalar subquery lets the index on
-- (due, seq) bound the scan: clock_timestamp() alone is volatile and would filter the whole table. Rows are
-- deleted by ctid (they are locked, so it holds): no plan can fall back to a scan of the backlog, and no
-- index is written. The events are read by = ANY, one walk over their index; a last row has the number of the
-- claim's items, and the items themselves unless all are claimed for the first time. The commit does not wait for the
-- disk: a claim lost in a crash leaves the events waiting, and the settle that follows a delivery does wait.
WITH clock AS MATERIALIZED (
  SELECT {clock} AS now, set_config('synchronous_commit', 'off', true)),
batch AS MATERIALIZED (
  SELECT token, items, until,
         CASE WHEN EXISTS (SELECT 1 FROM {pending} WHERE due <= (SELECT now FROM clock))
              THEN greatest(:limit::integer / 2, 1) ELSE :limit::integer END AS room
  FROM {claim}
  WHERE owner IS NULL
  ORDER BY until LIMIT 1
  {skip_locked}),
rest AS (
  UPDATE {claim} c SET items = b.items[b.room + 1:] FROM batch b
  WHERE c.token = b.token AND cardinality(b.items) > b.room),
emptied AS (
  DELETE FROM {claim} c USING batch b WHERE c.token = b.token AND cardinality(b.items) <= b.room),
picked AS MATERIALIZED (
  SELECT ctid FROM {pending}
  WHERE due <= (SELECT now FROM clock)
  ORDER BY due, seq
  LIMIT :limit::integer - coalesce((SELECT least(cardinality(items), room) FROM batch), 0)
  {skip_locked}),
{gone},
taken AS MATERIALIZED (
  SELECT item, since FROM gone WHERE item IS NOT NULL
  UNION ALL
  SELECT item + (item % 65536::bigint < 65535)::integer, b.until FROM batch b, unnest(b.items[1:b.room]) AS item
  WHERE item > 65535),
{claim_taken}
SELECT cardinality(items), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       CASE WHEN tried THEN items END FROM whole

-- name: outbox.claim.ordered -> rows
-- The same for ordered delivery, from single rows only and from the shards this instance owns and keeps. By seq, not by
-- due: a row that was given back is due later than its successors and must still go before them. So is one that was
-- written before the clock was set back: what waits for no time (`since`) is not compared with the clock. While a batch
-- waits or a claim has expired, nothing is claimed: it may hold earlier events of the same keys and must become
-- single rows first (outbox.claim.expired), and so must what its owner does not know of (outbox.claim.estranged). Nor while somebody has leased keys (another strategy), or keys are
-- held: the last row says so in its second column, and outbox.keys.turn claims then. FOR SHARE on the shard rows makes a
-- take-over wait for this claim, so it will see and free it; the rows themselves need no lock, they are deleted at once.
WITH clock AS MATERIALIZED (
  SELECT {clock} AS now, set_config('synchronous_commit', 'off', true)),
mine AS MATERIALIZED (
  SELECT shard FROM {shard} WHERE owner = :owner AND until > (SELECT now FROM clock)
    AND shard <> ALL(:leaving::integer[]) FOR SHARE),
picked AS MATERIALIZED (
  SELECT p.ctid FROM {pending} p
  WHERE (p.due <= (SELECT now FROM clock) OR p.since IS NOT NULL)
    AND (p.key_hash >> 32) % :shards = ANY(ARRAY(SELECT shard FROM mine))
    AND NOT EXISTS (SELECT 1 FROM {hold})
    AND NOT EXISTS (SELECT 1 FROM {lease})
    AND NOT EXISTS (SELECT 1 FROM {claim} WHERE until <= (SELECT now FROM clock) OR owner IS NULL
                    OR (owner = :owner AND token <> ALL(:known::bigint[])
                        AND EXISTS (SELECT 1 FROM unnest(items) AS item WHERE item / 65536 NOT IN (SELECT unnest(:kept::bigint[])))))
  ORDER BY p.seq
  LIMIT :limit),
{gone},
whole AS MATERIALIZED (
  SELECT array_agg(item ORDER BY item) AS items, bool_or(item % 65536::bigint > 1) AS tried, min(since) AS since FROM gone
  WHERE item IS NOT NULL),
{held}
SELECT e.seq, {claimed_columns}, NULL::bigint[]
FROM {event} e WHERE e.seq = ANY(ARRAY(SELECT item / 65536 FROM gone))
UNION ALL
SELECT cardinality(items), CASE WHEN EXISTS (SELECT 1 FROM {hold}) THEN 'held' END, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, CASE WHEN tried THEN items END FROM whole

-- name: outbox.claim.verify -> rows
-- What these claims hold: one whose savepoint was rolled back does not exist.
SELECT c.token, item / 65536 FROM {claim} c, unnest(c.items) AS item WHERE c.token = ANY(:tokens::bigint[])

-- name: outbox.claim.lock -> rows
-- Fixes the claims that the next statements of this transaction rely on.
SELECT token FROM {claim} WHERE token = ANY(:tokens::bigint[]) ORDER BY token FOR UPDATE

-- name: outbox.claim.renew -> rows
-- A lease belongs to the claim: renewing one event of it renews all.
-- Locked in the order that settling locks them in, or the two could wait for each other.
WITH locked AS MATERIALIZED (
  SELECT token FROM {claim} WHERE token = ANY(:tokens::bigint[]) ORDER BY token FOR UPDATE),
renewed AS (
  UPDATE {claim} c SET until = {clock} + {lease_time}
  FROM locked l WHERE c.token = l.token
  RETURNING c.token, c.items)
SELECT token, item / 65536 FROM renewed, unnest(items) AS item

-- name: outbox.claim.release -> count
-- Given back untried: due at once, and the attempt that claiming counted is taken back. IS TRUE keeps IN a hashed
-- lookup: as a join, a large batch that the hot queue refused would take hours.
INSERT INTO {pending} (seq, due, key_hash, attempts, tenant, since)
SELECT e.seq, {clock}, {hash}(coalesce(e.aggregate_id, e.event_id)),
       greatest(item % 65536::bigint - 1, 0), coalesce(e.tenant_id, ''), coalesce(c.since, c.claimed_at)
FROM {claim} c CROSS JOIN LATERAL unnest(c.items) AS item JOIN {event} e ON e.seq = item / 65536
WHERE c.token = ANY(:tokens::bigint[])
  AND ((c.token, item / 65536) IN (
    SELECT s.token, s.seq FROM unnest(:seqs::bigint[], :tokens::bigint[]) AS s(seq, token))) IS TRUE
{once}

-- name: outbox.claim.abandon -> count
-- Claims that were made, perhaps, and never arrived: given back untried.
WITH gone AS (
  DELETE FROM {claim} WHERE token = ANY(:tokens::bigint[]) RETURNING items, coalesce(since, claimed_at) AS since)
INSERT INTO {pending} (seq, due, key_hash, attempts, tenant, since)
SELECT e.seq, {clock}, {hash}(coalesce(e.aggregate_id, e.event_id)), greatest(item % 65536::bigint - 1, 0),
       coalesce(e.tenant_id, ''), gone.since
FROM gone, unnest(gone.items) AS item JOIN {event} e ON e.seq = item / 65536
WHERE item > 65535
{once}

-- name: outbox.claim.expired -> count
-- Claims whose lease ended or whose owner is gone (with :orphans also one that claimed after it was declared dead), those
-- and with :waiting batches nobody claimed yet, become single rows. One remover each (SKIP LOCKED), and with the
-- claim goes the token, so a zombie can settle nothing. :spread seconds of jitter keep what was claimed before
-- apart from its neighbours: should one of them kill its worker, the others get away. Not where delivery is ordered
-- (there are shards or leases): later events would overtake.
WITH gone AS (
  DELETE FROM {claim} WHERE token IN (
    SELECT token FROM {claim}
    WHERE (until <= (SELECT {clock}) AND owner IS NOT NULL)
       OR (owner IS NULL AND :waiting)
       OR owner = ANY(:owners::integer[])
       OR (:orphans AND owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {instance} i WHERE i.id = owner))
    {skip_locked})
  RETURNING items, coalesce(since, claimed_at, until) AS since)
INSERT INTO {pending} (seq, due, key_hash, attempts, tenant, since)
SELECT e.seq, {clock}
         + make_interval(secs => CASE WHEN item % 65536::bigint > 1 AND NOT EXISTS (SELECT 1 FROM {shard})
                                       AND NOT EXISTS (SELECT 1 FROM {lease})
                                      THEN random() * :spread::float8 ELSE 0 END),
       {hash}(coalesce(e.aggregate_id, e.event_id)), item % 65536::bigint, coalesce(e.tenant_id, ''), gone.since
FROM gone, unnest(gone.items) AS item JOIN {event} e ON e.seq = item / 65536
WHERE item > 65535
{once}

-- name: outbox.claim.estranged -> count
-- What is claimed for :owner though it does not know of it becomes single rows: a fail-over forgot that it was to be
-- tried again, or was given back. Of the claims that are not :known as a whole it knows what is :kept.
WITH strange AS MATERIALIZED (
  SELECT token, items, coalesce(since, claimed_at, until) AS since FROM {claim}
  WHERE owner = :owner AND token <> ALL(:known::bigint[])
    AND EXISTS (SELECT 1 FROM unnest(items) AS item WHERE item / 65536 NOT IN (SELECT unnest(:kept::bigint[])))
  {skip_locked}),
part AS (
  UPDATE {claim} c SET items = ARRAY(SELECT item FROM unnest(c.items) AS item WHERE item / 65536 = ANY(:kept::bigint[]))
  FROM strange s
  WHERE c.token = s.token AND EXISTS (SELECT 1 FROM unnest(s.items) AS item WHERE item / 65536 = ANY(:kept::bigint[]))
  RETURNING c.token),
gone AS (
  DELETE FROM {claim} WHERE token IN (SELECT token FROM strange) AND token NOT IN (SELECT token FROM part))
INSERT INTO {pending} (seq, due, key_hash, attempts, tenant, since)
SELECT e.seq, {clock}, {hash}(coalesce(e.aggregate_id, e.event_id)), item % 65536::bigint, coalesce(e.tenant_id, ''),
       s.since
FROM strange s, unnest(s.items) AS item JOIN {event} e ON e.seq = item / 65536
WHERE item > 65535 AND item / 65536 NOT IN (SELECT unnest(:kept::bigint[]))
{once}

-- name: outbox.claim.oldest -> rows
-- Seconds since the oldest event became due that is not settled: it waits, or somebody has claimed it. NULL: there is
-- none. Of those that wait the longest due one tells, which the index finds; claims are few.
SELECT extract(epoch FROM c.now - greatest({first_time}, least(
  (SELECT least(since, due) FROM {pending} WHERE due <= c.now ORDER BY due, seq LIMIT 1),
  (SELECT min(coalesce(since, claimed_at, until)) FROM {claim}), c.now)))::float8
FROM (SELECT {clock} AS now OFFSET 0) c

-- name: outbox.claim.next -> rows
-- Seconds until the next row is due, so that an idle poller can sleep exactly that long.
SELECT extract(epoch FROM least(greatest(due, {first_time}), {last_time}) - {clock})::float8 FROM {pending}
ORDER BY due LIMIT 1
