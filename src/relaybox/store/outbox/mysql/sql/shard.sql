-- name: outbox.instance.free -> count
-- The claims of dead instances are due at once. Their tokens go, so a zombie cannot settle. One table only:
-- such an UPDATE passes over locked rows of others without waiting.
UPDATE {pending} SET due = {clock}, token = NULL, owner = NULL, claimed_at = NULL
WHERE owner IS NOT NULL AND JSON_CONTAINS(:owners, CAST(owner AS char))

-- name: outbox.shard.seed -> count
-- Only when some are missing: an INSERT that finds the row there locks it, and hides it from SKIP LOCKED.
INSERT IGNORE INTO {shard} (shard) SELECT s.shard FROM JSON_TABLE(:all, '$[*]' COLUMNS (shard integer PATH '$')) s

-- name: outbox.shard.pick -> rows
-- Up to :want free or expired shards, of :among if given; none while somebody has leased keys (another strategy).
SELECT shard, term FROM {shard}
WHERE shard < :shards AND (:among IS NULL OR JSON_CONTAINS(:among, CAST(shard AS char)))
  AND (owner IS NULL OR NOT {lasting}) AND NOT EXISTS (SELECT 1 FROM {lease})
ORDER BY shard LIMIT :want {skip_locked}

-- name: outbox.shard.acquire -> count
-- Each under a new term.
UPDATE JSON_TABLE(:taken, '$[*]' COLUMNS (shard integer PATH '$')) s STRAIGHT_JOIN {shard} h ON h.shard = s.shard
SET h.owner = :owner, h.term = h.term + 1, h.until = {clock} + {ttl}

-- name: outbox.shard.free -> count
-- After a take-over: what the former owner had claimed in these shards is free, and its token is gone.
UPDATE {pending} SET due = {clock}, token = NULL, owner = NULL, claimed_at = NULL
WHERE owner IS NOT NULL AND JSON_CONTAINS(:taken, CAST((key_hash >> 32) % :shards AS char))

-- name: outbox.shard.release -> count
UPDATE {shard} SET owner = NULL, until = '1000-01-01 00:00:00'
WHERE owner = :owner AND JSON_CONTAINS(:given, CAST(shard AS char))
