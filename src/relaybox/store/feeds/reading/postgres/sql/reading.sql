-- What another database asks of a feed that it follows. Compiled for one feed where {log} is the log of its topic and
-- {relation} its table, as the catalog has the name.

-- name: feed.reading.head -> rows
-- Asked again and again: one row.
SELECT f.epoch::text, f.n FROM {feed} f WHERE f.name = :name::text

-- name: feed.reading.place -> rows
SELECT f.epoch::text, f.n, f.topic_id, f.relation, f.key,
       (('x' || substr(md5(f.name), 1, 8))::bit(32)::bigint & 2147483647::bigint) % t.shards::bigint,
       (extract(epoch FROM clock_timestamp()) * 1000000::numeric)::bigint
FROM {feed} f JOIN {topic} t ON t.id = f.topic_id WHERE f.name = :name::text

-- name: feed.reading.columns -> rows
-- Domains are what they are made of; a type that is somebody's own is text if PostgreSQL takes it for that.
WITH RECURSIVE c AS (
  SELECT a.attname AS name, a.attnum AS ord, a.atttypid AS type, a.atttypmod AS mod
  FROM pg_attribute a WHERE a.attrelid = to_regclass(:relation::text) AND a.attnum > 0 AND NOT a.attisdropped
  UNION ALL
  SELECT c.name, c.ord, t.typbasetype, t.typtypmod FROM c JOIN pg_type t ON t.oid = c.type WHERE t.typtype = 'd')
SELECT c.name::text, CASE WHEN t.typtype = 'e' OR t.typname LIKE 'reg%'::text OR t.typname = 'char' THEN 'text'
                          WHEN t.typtype = 'c' THEN 'jsonb'
                          WHEN t.typnamespace <> 'pg_catalog'::regnamespace AND t.typcategory = 'S' THEN 'text'
                          WHEN e.typtype = 'e' THEN 'text[]' WHEN e.typtype = 'c' THEN 'jsonb[]'
                          ELSE format_type(c.type, c.mod) END
FROM c JOIN pg_type t ON t.oid = c.type LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
WHERE t.typtype <> 'd' ORDER BY c.ord

-- name: feed.reading.after -> rows
-- By the index (shard, seq) of each partition. The deltas of a feed are in the order of their commits: its row is locked
-- until then.
SELECT e.seq, e.headers, e.payload FROM {log} e
WHERE e.shard = :shard::smallint AND e.seq > :seq::bigint AND e.aggregate_id = :name::text AND e.event_type = 'feed.delta'
ORDER BY e.seq LIMIT :most

-- name: feed.reading.last -> rows
-- Where the newest delta stands.
SELECT e.seq FROM {log} e
WHERE e.shard = :shard::smallint AND e.aggregate_id = :name::text AND e.event_type = 'feed.delta'
ORDER BY e.seq DESC LIMIT 1

-- name: feed.reading.begin -> count
-- One snapshot for all that a copy looks at.
START TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY

-- name: feed.reading.words -> rows
-- As a refresh writes them.
SELECT set_config('TimeZone', 'UTC', true), set_config('DateStyle', 'ISO', true),
       set_config('IntervalStyle', 'iso_8601', true), set_config('extra_float_digits', '1', true),
       set_config('bytea_output', 'hex', true), set_config('enable_seqscan', 'on', true)

-- name: feed.reading.open -> count
DECLARE relaybox_copy NO SCROLL CURSOR FOR SELECT {line}::text FROM {relation} m

-- name: feed.reading.fetch -> rows
FETCH FORWARD {most} FROM relaybox_copy

-- name: feed.reading.end -> count
COMMIT

-- slot: row
row_to_json(m.*)

-- slot: row_without
-- The JSON null is left out: as null it would be the NULL of SQL.
CASE WHEN {null_there} THEN (SELECT json_object_agg(e.key, e.value) FROM json_each(row_to_json(m.*)) e WHERE NOT ({null_here}))
     ELSE row_to_json(m.*) END
