-- name: topic.catalog.add -> rows
-- No row: it is there.
INSERT INTO {topic} (name, semantics, tracking, shards, block_writes, retention, zero_retention, max_retention,
                     zombie_ttl, partitions, options, created_at, updated_at)
SELECT :name::text, :semantics::text, :tracking::text, :shards::smallint, :block_writes::boolean,
       :retention::interval, :zero_retention::interval, :max_retention::interval, :zombie_ttl::interval,
       :partitions::text, :options::text, c.now, c.now
FROM (SELECT {clock} AS now) c
ON CONFLICT (name) DO NOTHING
RETURNING id

-- name: topic.catalog.named -> count
-- What its table is called: nobody has to make up the name again.
UPDATE {topic} SET relation = :relation WHERE id = :topic

-- name: topic.catalog.begin -> count
-- The head of its log, and tick 0, which has seen nothing.
WITH h AS (INSERT INTO {head} (topic_id, tick) VALUES (:topic::integer, 0)),
l AS (INSERT INTO {latch} (topic_id) VALUES (:topic::integer) ON CONFLICT DO NOTHING)
INSERT INTO {tick} (topic_id, tick, snapshot, since, late, floor, ceil, at)
VALUES (:topic::integer, 0, '1:1:', '1', '{}', 0, 0, '-infinity')

-- name: topic.catalog.lock -> rows
SELECT id FROM {topic} WHERE name = :name FOR UPDATE

-- name: topic.catalog.change -> count
UPDATE {topic}
SET block_writes = :block_writes::boolean, retention = :retention::interval, zero_retention = :zero_retention::interval,
    max_retention = :max_retention::interval, zombie_ttl = :zombie_ttl::interval, partitions = :partitions::text,
    options = :options::text, updated_at = {clock}
WHERE id = :topic

-- name: topic.catalog.queues -> rows
-- Those that have the tables of an outbox: queues tracked by rows, and what is being moved from or to one.
SELECT id FROM {topic}
WHERE tracking = 'rows'
   OR (moving IS NOT NULL AND semantics = 'queue' AND moving::json ->> 'phase'::text IN ('cut_log', 'drain_rows', 'close_rows'))
ORDER BY id

-- name: topic.catalog.find -> rows
SELECT id, version, active, required, audience, moving, created_at, updated_at, name, semantics, tracking, shards,
       block_writes, retention, zero_retention, max_retention, zombie_ttl, partitions, options
FROM {topic} WHERE :names::text[] IS NULL OR name = ANY(:names::text[])
ORDER BY name

-- name: topic.catalog.readers -> rows
SELECT name, state FROM {group} WHERE topic_id = :topic AND state <> 'cancelled' ORDER BY name

-- name: topic.catalog.forget_groups -> count
-- Only cancelled ones are left.
DELETE FROM {group} WHERE topic_id = :topic

-- name: topic.catalog.forget -> count
WITH h AS (DELETE FROM {head} WHERE topic_id = :topic), k AS (DELETE FROM {tick} WHERE topic_id = :topic)
DELETE FROM {topic} WHERE id = :topic

-- name: topic.catalog.columns -> rows
-- What is really there, to compare with what the migrations make. information_schema shows what a role has rights on.
SELECT c.relname::text, a.attname::text
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = coalesce(nullif('{namespace}', ''), current_schema()))
  AND c.relname = ANY(:tables::text[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY 1, 2

-- name: topic.catalog.indexes -> rows
SELECT tablename, indexname FROM pg_indexes
WHERE schemaname = coalesce(nullif('{namespace}', ''), current_schema()) AND tablename = ANY(:tables::text[])
ORDER BY 1, 2
