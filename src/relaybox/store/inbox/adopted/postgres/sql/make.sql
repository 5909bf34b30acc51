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

-- name: inbox.adopt.message -> count
CREATE OR REPLACE VIEW {message} AS
SELECT m.seq, m.event_id, {of_event_type} AS event_type, {by_sender} AS {sender_name}, NULL::text AS aggregate_type,
       {of_aggregate_id} AS aggregate_id, NULL::text AS tenant_id, NULL::text AS content_type, {of_payload} AS payload,
       {of_headers} AS headers, {of_received_at} AS occurred_at, {of_received_at} AS received_at
FROM {map} m JOIN {their_table} t ON t.{their_id} = m.id

-- name: inbox.adopt.ids -> count
CREATE TABLE {seen} (event_id text COLLATE "C" PRIMARY KEY, seen_at timestamptz NOT NULL)

-- name: inbox.adopt.renamed -> count
ALTER VIEW {message} RENAME COLUMN source TO sender

-- name: inbox.adopt.ids_sender -> count
-- '*': where an id is unique by itself, it is a duplicate from any sender.
ALTER TABLE {seen}
  ADD COLUMN sender text COLLATE "C" NOT NULL DEFAULT '*',
  DROP CONSTRAINT "{seen_name}_pkey",
  ADD PRIMARY KEY (event_id, sender)

-- name: inbox.adopt.ids_at -> count
CREATE INDEX "{seen_name}_at" ON {seen} (seen_at)

-- name: inbox.drop.function -> count
DROP FUNCTION IF EXISTS {gone}

-- name: inbox.drop.sequence -> count
DROP SEQUENCE IF EXISTS {gone}
