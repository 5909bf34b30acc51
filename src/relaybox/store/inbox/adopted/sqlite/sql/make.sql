-- name: inbox.adopt.map -> count
CREATE TABLE {map} (
  seq       integer PRIMARY KEY AUTOINCREMENT,
  id        {id_type} NOT NULL UNIQUE,
  event_id  text    NOT NULL,
  picked_at integer NOT NULL)

-- name: inbox.adopt.index -> count
CREATE INDEX {map_name}_event ON {map} (event_id)

-- name: inbox.adopt.theirs -> count
CREATE VIEW {theirs} AS SELECT {their_columns} FROM {their_table} t

-- name: inbox.adopt.change -> count
-- A view takes no writes here: it says what one means.
CREATE TRIGGER {theirs_name}_change INSTEAD OF UPDATE ON {theirs} BEGIN
  UPDATE {their_table} SET {their_processed_at} = NEW.processed_at, {their_retry_count} = NEW.retry_count,
                           {their_error} = NEW.error
  WHERE {their_id} = OLD.id;
END

-- name: inbox.adopt.add -> count
CREATE TRIGGER {theirs_name}_add INSTEAD OF INSERT ON {theirs} BEGIN
  INSERT INTO {their_table} ({their_given}) VALUES ({new_given});
END

-- name: inbox.adopt.message -> count
CREATE VIEW {message} AS
SELECT m.seq, m.event_id, {of_event_type} AS event_type, {of_source} AS source, NULL AS aggregate_type,
       {of_aggregate_id} AS aggregate_id, NULL AS tenant_id, NULL AS content_type, {of_payload} AS payload,
       {of_headers} AS headers, {of_received_at} AS occurred_at, {of_received_at} AS received_at
FROM {map} m JOIN {their_table} t ON t.{their_id} = m.id

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
