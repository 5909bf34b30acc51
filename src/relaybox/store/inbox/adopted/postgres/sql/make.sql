-- name: inbox.adopt.map -> count
-- Its id is of their type, down to the collation: a join of the two can use both indexes.
CREATE TABLE {map} AS SELECT t.{their_id} AS id FROM {their_table} t WITH NO DATA

-- name: inbox.adopt.number -> count
ALTER TABLE {map}
  ALTER COLUMN id SET NOT NULL,
  ADD COLUMN seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  ADD COLUMN event_id text COLLATE "C" NOT NULL,
  ADD COLUMN picked_at timestamptz NOT NULL,
  ADD CONSTRAINT "{map_name}_theirs" UNIQUE (id)

-- name: inbox.adopt.index -> count
CREATE INDEX "{map_name}_event" ON {map} (event_id)

-- name: inbox.adopt.theirs -> count
CREATE VIEW {theirs} AS SELECT {their_columns} FROM {their_table} t

-- name: inbox.adopt.message -> count
CREATE VIEW {message} AS
SELECT m.seq, m.event_id, {of_event_type} AS event_type, {of_source} AS source, NULL::text AS aggregate_type,
       {of_aggregate_id} AS aggregate_id, NULL::text AS tenant_id, NULL::text AS content_type, {of_payload} AS payload,
       {of_headers} AS headers, {of_received_at} AS occurred_at, {of_received_at} AS received_at
FROM {map} m JOIN {their_table} t ON t.{their_id} = m.id

-- name: inbox.adopt.ids -> count
CREATE TABLE {seen} (event_id varchar(255) COLLATE "C" PRIMARY KEY, seen_at timestamptz NOT NULL)

-- name: inbox.adopt.ids_at -> count
CREATE INDEX "{seen_name}_at" ON {seen} (seen_at)

-- name: inbox.adopt.stats -> count
CREATE VIEW {stats} AS
SELECT m.event_type, count(p.seq) AS pending, count(f.seq) AS processed, count(d.seq) AS dead,
       avg(f.waited) AS avg_processing_sec
FROM {message} m
LEFT JOIN {pending} p ON p.seq = m.seq
LEFT JOIN {done} f ON f.seq = m.seq
LEFT JOIN {dead} d ON d.seq = m.seq
GROUP BY m.event_type

-- name: inbox.drop.view -> count
DROP VIEW IF EXISTS {gone}

-- name: inbox.drop.table -> count
DROP TABLE IF EXISTS {gone}

-- name: inbox.drop.function -> count
DROP FUNCTION IF EXISTS {gone}

-- name: inbox.drop.sequence -> count
DROP SEQUENCE IF EXISTS {gone}
