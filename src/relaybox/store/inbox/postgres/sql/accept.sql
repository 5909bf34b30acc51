-- name: inbox.accept.one -> count
-- One message, in one round trip and by itself a transaction. 1: it was new. ON CONFLICT waits for a transaction that
-- has inserted the same id and not ended: committed, the id is a duplicate; rolled back, it is ours.
WITH fresh AS (
  INSERT INTO {message} (seq, {event_fields}, source, received_at)
  VALUES (nextval('{seq}'), :event_id, :event_type, :aggregate_type, :aggregate_id, :tenant_id, :content_type,
          :payload, :headers, :occurred_at, :source, {clock})
  ON CONFLICT (event_id) DO NOTHING
  RETURNING seq, event_type, received_at),
j AS (
  INSERT INTO {journal} (event_type, pending) SELECT event_type, 1 FROM fresh)
INSERT INTO {pending} (seq, due, key_hash, position, priority, attempts)
SELECT seq, received_at, :key_hash, :position, :priority, 0 FROM fresh

-- name: inbox.accept -> rows
-- One round trip for a thousand; answers the ids that were new. Numbers are drawn in list order. Ids are inserted in one
-- order by all, so that no two batches wait for each other. With :patience they wait no longer than that for anybody.
-- IS TRUE keeps the planner from a join of the new rows, which our sessions would do as a nested loop.
WITH given AS MATERIALIZED (
  SELECT nextval('{seq}') AS seq, o.*
  FROM (SELECT * FROM unnest({event_arrays}, :sources::text[], :key_hashes::bigint[], :positions::bigint[],
                             :priorities::smallint[])
        WITH ORDINALITY AS u({event_fields}, source, key_hash, position, priority, ord)
        WHERE (SELECT set_config('lock_timeout', coalesce(:patience, current_setting('lock_timeout')), true)) IS NOT NULL
        ORDER BY ord) o),
fresh AS (
  INSERT INTO {message} (seq, {event_fields}, source, received_at)
  SELECT seq, {event_fields}, source, {clock} FROM given ORDER BY event_id COLLATE "C"
  ON CONFLICT (event_id) DO NOTHING
  RETURNING seq),
kept AS MATERIALIZED (
  SELECT seq, event_id, event_type, key_hash, position, priority FROM given
  WHERE (seq IN (SELECT seq FROM fresh)) IS TRUE),
p AS (
  INSERT INTO {pending} (seq, due, key_hash, position, priority, attempts)
  SELECT seq, {clock}, key_hash, position, priority, 0 FROM kept),
j AS (
  INSERT INTO {journal} (event_type, pending) SELECT event_type, count(*) FROM kept GROUP BY event_type)
SELECT event_id FROM kept
