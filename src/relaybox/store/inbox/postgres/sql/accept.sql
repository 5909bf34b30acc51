-- name: inbox.accept.one -> count
-- One message, in one round trip and by itself a transaction. 1: it was new. ON CONFLICT waits for a transaction that
-- has inserted the same id of the same sender and not ended: committed, ours is a duplicate; rolled back, it is new.
WITH fresh AS (
  INSERT INTO {message} (seq, {event_fields}, sender, received_at)
  VALUES (nextval('{seq}'), :event_id, :event_type, :aggregate_type, :aggregate_id, :tenant_id, :content_type,
          :payload, :headers, :occurred_at, :sender, {clock})
  ON CONFLICT (event_id, sender) DO NOTHING
  RETURNING seq, event_type, received_at),
j AS (
  INSERT INTO {journal} (event_type, pending) SELECT event_type, 1 FROM fresh)
INSERT INTO {pending} (seq, due, key_hash, position, priority, attempts)
SELECT seq, received_at, :key_hash, :position, :priority, 0 FROM fresh

-- name: inbox.accept -> rows
-- One round trip for a thousand; answers which were new, counted from 1. Numbers are drawn in list order. Ids are
-- inserted in one order by all, so that no two batches wait for each other. With :patience they wait no longer than that for anybody.
-- IS TRUE keeps the planner from a join of the new rows, which our sessions would do as a nested loop.
WITH given AS MATERIALIZED (
  SELECT nextval('{seq}') AS seq, o.*
  FROM (SELECT * FROM unnest({event_arrays}, :senders::text[], :key_hashes::bigint[], :positions::bigint[],
                             :priorities::smallint[])
        WITH ORDINALITY AS u({event_fields}, sender, key_hash, position, priority, ord)
        WHERE (SELECT set_config('lock_timeout', coalesce(:patience, current_setting('lock_timeout')), true)) IS NOT NULL
        ORDER BY ord) o),
fresh AS (
  INSERT INTO {message} (seq, {event_fields}, sender, received_at)
  SELECT seq, {event_fields}, sender, {clock} FROM given ORDER BY event_id COLLATE "C", sender COLLATE "C"
  ON CONFLICT (event_id, sender) DO NOTHING
  RETURNING seq),
kept AS MATERIALIZED (
  SELECT seq, ord, event_type, key_hash, position, priority FROM given
  WHERE (seq IN (SELECT seq FROM fresh)) IS TRUE),
p AS (
  INSERT INTO {pending} (seq, due, key_hash, position, priority, attempts)
  SELECT seq, {clock}, key_hash, position, priority, 0 FROM kept),
j AS (
  INSERT INTO {journal} (event_type, pending) SELECT event_type, count(*) FROM kept GROUP BY event_type)
SELECT ord FROM kept
