-- name: outbox.instance.free -> count
-- The claims of dead instances are due at once. Their tokens go, so a zombie cannot settle.
UPDATE {pending} SET due = {clock}, token = NULL, owner = NULL, claimed_at = NULL
WHERE owner {in_owners}

-- name: outbox.shard.seed -> count
INSERT OR IGNORE INTO {shard} (shard) SELECT value FROM json_each(:all)

-- name: outbox.shard.pick -> rows
-- Up to :want free or expired shards, of :among if given.
SELECT shard, term FROM {shard}
WHERE shard < :shards AND (:among IS NULL OR shard IN (SELECT value FROM json_each(:among)))
  AND (owner IS NULL OR NOT {lasting}) ORDER BY shard LIMIT :want

-- name: outbox.shard.acquire -> count
-- Each under a new term.
UPDATE {shard} SET owner = :owner, term = term + 1, until = {clock} + {ttl}
WHERE shard IN (SELECT value FROM json_each(:taken))

-- name: outbox.shard.free -> count
-- After a take-over: what the former owner had claimed in these shards is free, and its token is gone.
UPDATE {pending} SET due = {clock}, token = NULL, owner = NULL, claimed_at = NULL
WHERE owner IS NOT NULL AND (key_hash >> 32) % :shards IN (SELECT value FROM json_each(:taken))

-- name: outbox.shard.release -> count
UPDATE {shard} SET owner = NULL, until = 0
WHERE owner = :owner AND shard IN (SELECT value FROM json_each(:given))
