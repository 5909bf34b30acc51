-- name: outbox.keys.walk -> rows
-- The next :limit keys that have waiting rows, in the order of their hash from :after on; a last row without a key
-- says that there are no more. One index probe per key, however many rows wait behind it: a recursion is read only
-- as far as LIMIT asks, and each step is the smallest hash above the last. `head` is the first row of the key that
-- may be claimed, if any: none behind a held head, nor a parked one; what waits for no time (`since`) is not compared
-- with the clock, which may have been set back. The other columns say why nothing may be
-- claimed at all: somebody delivers by shards; a waiting batch or an expired claim may hold earlier events of any
-- key; one snapshot for all.
WITH RECURSIVE clock AS MATERIALIZED (SELECT {clock} AS now),
walk AS (
  SELECT (SELECT min(key_hash) FROM {pending} WHERE key_hash > :after::bigint) AS key_hash
  UNION ALL
  SELECT (SELECT min(p.key_hash) FROM {pending} p WHERE p.key_hash > w.key_hash) FROM walk w
  WHERE w.key_hash IS NOT NULL)
SELECT w.key_hash,
       EXISTS (SELECT 1 FROM {lease} l JOIN {claim} c ON c.token = l.token WHERE l.key_hash = w.key_hash),
       (SELECT p.seq FROM {pending} p
        WHERE p.key_hash = w.key_hash AND (p.due <= (SELECT now FROM clock) OR p.since IS NOT NULL)
          AND p.seq <= coalesce((SELECT h.seq - h.parked::integer FROM {hold} h WHERE h.key_hash = w.key_hash),
                                9223372036854775807)
        ORDER BY p.seq LIMIT 1),
       EXISTS (SELECT 1 FROM {shard} WHERE owner IS NOT NULL AND {lasting}),
       EXISTS (SELECT 1 FROM {claim} WHERE until <= (SELECT now FROM clock) OR owner IS NULL),
       current_setting('transaction_isolation')
FROM (SELECT key_hash FROM walk LIMIT :limit) w

-- name: outbox.keys.advisory -> rows
-- Leases of up to :limit of :keys, tried in their order by advisory locks that end with the claim: who loses does
-- not wait. The lock only keeps claimers apart; the lease holds, by its primary key. One whose claim is gone is
-- overwritten, but only if its token is one that this snapshot saw stale: the row may be another's by now, and its
-- claim unseen. Any role of the database can hold such a lock: a key that was :refused by one and is free all the same is
-- taken without it, and who is faster by the primary key.
WITH locked AS MATERIALIZED (
  SELECT k.key_hash FROM unnest(:keys::bigint[], :refused::boolean[]) AS k(key_hash, refused)
  WHERE k.refused OR pg_try_advisory_xact_lock(:namespace::integer, (k.key_hash & 2147483647::bigint)::integer)
  LIMIT :limit),
stale AS MATERIALIZED (
  SELECT l.token FROM locked k JOIN {lease} l ON l.key_hash = k.key_hash
  WHERE NOT EXISTS (SELECT 1 FROM {claim} c WHERE c.token = l.token))
INSERT INTO {lease} AS l (key_hash, token) SELECT key_hash, :token::bigint FROM locked
ON CONFLICT (key_hash) DO UPDATE SET token = excluded.token WHERE l.token IN (SELECT token FROM stale)
RETURNING key_hash

-- name: outbox.keys.rows -> rows
-- The same by locks on the head rows. A key whose head is locked or gone is passed over as a whole: its head was
-- looked up before, so its next row is not taken in its place.
WITH locked AS MATERIALIZED (
  SELECT k.key_hash FROM unnest(:keys::bigint[], :heads::bigint[]) WITH ORDINALITY AS k(key_hash, head, ord)
  JOIN {pending} p ON p.seq = k.head
  ORDER BY k.ord LIMIT :limit
  FOR UPDATE OF p SKIP LOCKED),
stale AS MATERIALIZED (
  SELECT l.token FROM locked k JOIN {lease} l ON l.key_hash = k.key_hash
  WHERE NOT EXISTS (SELECT 1 FROM {claim} c WHERE c.token = l.token))
INSERT INTO {lease} AS l (key_hash, token) SELECT key_hash, :token::bigint FROM locked
ON CONFLICT (key_hash) DO UPDATE SET token = excluded.token WHERE l.token IN (SELECT token FROM stale)
RETURNING key_hash

-- name: outbox.keys.claim -> rows
-- The due rows of keys we have leased, key by key in their order, into one claim. A later statement than the lease,
-- so that it sees what the former holder of a key left. Whole keys, but for the one that :limit cuts: its lease
-- keeps the tail. Keys that give nothing are free again. Unlike other claims this one waits for the disk: a lease
-- that a crash of the server undid would give the key to somebody else while we deliver.
WITH clock AS MATERIALIZED (SELECT {clock} AS now),
picked AS MATERIALIZED (
  SELECT r.ctid FROM unnest(:keys::bigint[]) AS k(key_hash)
  CROSS JOIN LATERAL (
    SELECT p.ctid FROM {pending} p
    WHERE p.key_hash = k.key_hash AND (p.due <= (SELECT now FROM clock) OR p.since IS NOT NULL)
      AND p.seq <= coalesce((SELECT h.seq - h.parked::integer FROM {hold} h WHERE h.key_hash = k.key_hash),
                            9223372036854775807)
    ORDER BY p.seq LIMIT :limit) r
  WHERE NOT EXISTS (SELECT 1 FROM {claim} WHERE until <= (SELECT now FROM clock) OR owner IS NULL)
  LIMIT :limit),
gone AS (
  DELETE FROM {pending} WHERE ctid = ANY(ARRAY(SELECT ctid FROM picked))
  RETURNING key_hash, seq, {item} AS item, coalesce(since, due) AS since),
{odd},
unused AS (
  DELETE FROM {lease} WHERE key_hash = ANY(:keys::bigint[]) AND token = :token
    AND key_hash NOT IN (SELECT key_hash FROM gone)),
{held_by_key}

-- name: outbox.keys.turn -> rows
-- The claim of outbox.claim.ordered while keys are held or :full: from key to key instead of by seq, so that whatever
-- waits behind a held head costs one probe and not a scan past all of it. At most :share of one key. ANY(ARRAY(…)) and not IN: as a join it could
-- begin with the shards, and the keys would not come in their order.
WITH RECURSIVE {turn_of},
walk AS (
  SELECT (SELECT min(key_hash) FROM {pending} WHERE key_hash > :after::bigint) AS key_hash
  UNION ALL
  SELECT (SELECT min(p.key_hash) FROM {pending} p WHERE p.key_hash > w.key_hash) FROM walk w
  WHERE w.key_hash IS NOT NULL),
{taken}

-- name: outbox.keys.recent -> rows
-- The same for the keys of which something came after :after, a number of an event.
WITH {turn_of},
walk AS MATERIALIZED (SELECT DISTINCT key_hash FROM {pending} WHERE seq > :after::bigint),
{taken}

-- name: outbox.lease.free -> count
-- Keys of which nothing is left in our claim. Only under our token: it may be another's lease by now.
DELETE FROM {lease} l USING unnest(:keys::bigint[], :tokens::bigint[]) AS s(key_hash, token)
WHERE l.key_hash = s.key_hash AND l.token = s.token

-- name: outbox.lease.sweep -> count
-- Leases whose claim is gone hold nothing; this keeps their number small. A lease and its claim are committed
-- together, so one seen without a claim stays without: deleted under the token that was seen, for it may be
-- another's by now.
WITH stale AS MATERIALIZED (
  SELECT l.key_hash, l.token FROM {lease} l WHERE NOT EXISTS (SELECT 1 FROM {claim} c WHERE c.token = l.token)),
locked AS MATERIALIZED (
  SELECT l.key_hash FROM stale s JOIN {lease} l ON l.key_hash = s.key_hash AND l.token = s.token
  FOR UPDATE OF l SKIP LOCKED)
DELETE FROM {lease} WHERE key_hash IN (SELECT key_hash FROM locked)
