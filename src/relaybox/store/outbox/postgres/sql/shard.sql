-- name: outbox.shard.seed -> count
INSERT INTO {shard} (shard) SELECT generate_series(0, :shards - 1) ON CONFLICT DO NOTHING

-- name: outbox.shard.lapsed -> rows
-- Which owners let shards expire: what they had claimed must be free before the shards move.
SELECT owner FROM {shard} WHERE owner IS NOT NULL AND NOT {lasting}

-- name: outbox.shard.acquire -> rows
-- Up to :want free or expired shards, of :among if given, under a new term each. One whose owner still has a claim
-- stays where it is: the claim is locked (its owner was paused inside a settle) and holds events that come before
-- what we would claim. None while somebody has leased keys (another strategy).
WITH free AS MATERIALIZED (
  SELECT s.shard FROM {shard} s
  WHERE s.shard < :shards
    AND (:among::integer[] IS NULL OR s.shard = ANY(:among::integer[]))
    AND (s.owner IS NULL OR (NOT {lasting}
                             AND NOT EXISTS (SELECT 1 FROM {claim} c WHERE c.owner = s.owner)))
    AND NOT EXISTS (SELECT 1 FROM {lease})
  ORDER BY s.shard LIMIT :want FOR UPDATE OF s SKIP LOCKED)
UPDATE {shard} s
SET owner = :owner, term = s.term + 1, until = {clock} + {ttl}
FROM free WHERE s.shard = free.shard
RETURNING s.shard, s.term

-- name: outbox.shard.wait -> rows
SELECT shard FROM {shard} WHERE owner = ANY(:owners::integer[]) ORDER BY shard FOR UPDATE

-- name: outbox.shard.renew -> rows
UPDATE {shard} SET until = {clock} + {ttl}
WHERE owner = :owner AND {lasting}
RETURNING shard, term

-- name: outbox.shard.release -> count
UPDATE {shard} SET owner = NULL, until = '-infinity'
WHERE owner = :owner AND shard = ANY(:given::integer[])
