-- name: inbox.adopt.map -> count
CREATE TABLE {map} (
  seq       integer PRIMARY KEY AUTOINCREMENT,
  id        {id_type} NOT NULL UNIQUE,
  event_id  text    NOT NULL,
  picked_at integer NOT NULL)

-- name: inbox.adopt.index -> count
CREATE INDEX {map_name}_event ON {map} (event_id)

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

-- name: inbox.adopt.renamed -> count
DROP VIEW {message}

-- name: inbox.adopt.message -> count
CREATE VIEW {message} AS
SELECT m.seq, m.event_id, {of_event_type} AS event_type, {by_sender} AS {sender_name}, NULL AS aggregate_type,
       {of_aggregate_id} AS aggregate_id, NULL AS tenant_id, NULL AS content_type, {of_payload} AS payload,
       {of_headers} AS headers, {of_received_at} AS occurred_at, {of_received_at} AS received_at
FROM {map} m JOIN {their_table} t ON t.{their_id} = m.id
