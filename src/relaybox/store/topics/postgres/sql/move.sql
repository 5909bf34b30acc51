-- Moving a topic from one tracking to another while it is used. `moving` in the topic's row says how far it is; every step
-- is a short transaction that reads it under the row's lock, so a mover may be killed, and two share the work.

-- name: topic.move.lock -> rows
SELECT moving FROM {topic} WHERE id = :topic FOR NO KEY UPDATE

-- name: topic.move.note -> count
UPDATE {topic} SET moving = :moving, updated_at = {clock} WHERE id = :topic

-- name: topic.move.switch -> rows
-- Writers present the version they know: from now on they ask again first. Those under way have an older number.
UPDATE {topic} SET tracking = :tracking, version = version + 1 WHERE id = :topic RETURNING pg_current_xact_id()::text

-- name: topic.move.semantics -> count
UPDATE {topic} SET semantics = :semantics, version = version + 1 WHERE id = :topic

-- name: topic.move.over -> rows
-- Whether everybody who was under way at the switch has ended.
SELECT pg_snapshot_xmin(pg_current_snapshot()) > :xid::text::xid8

-- name: topic.move.patience -> rows
SELECT set_config('lock_timeout', '100ms', true)

-- name: topic.move.barrier -> count
LOCK TABLE {log} IN SHARE MODE

-- name: topic.move.empty -> count
-- The table stays: a member that does not know of the move yet finds it, and nothing in it.
TRUNCATE {mark}

-- name: topic.move.empty_acks -> count
TRUNCATE {ack}

-- name: topic.move.prune -> count
DELETE FROM {mark} m
WHERE m.seq > :after AND m.seq <= :upto AND m.seq <> ALL(ARRAY(
  SELECT l.seq FROM {log} l WHERE l.shard = ANY(:shards::smallint[]) AND l.seq > :after AND l.seq <= :upto))

-- name: topic.move.extent -> rows
SELECT coalesce((SELECT min(s.seq) FROM unnest(:shards::smallint[]) AS u(shard) CROSS JOIN LATERAL (
                   SELECT l.seq FROM {log} l WHERE l.shard = u.shard ORDER BY l.seq LIMIT 1) s), 1) - 1,
       CASE WHEN q.is_called THEN q.last_value ELSE 0 END
FROM {log_seq} q

-- name: topic.move.tick -> rows
SELECT k.floor, ARRAY(SELECT x::text FROM unnest(k.late) AS x) FROM {head} h CROSS JOIN LATERAL (
  SELECT floor, late FROM {tick} WHERE topic_id = h.topic_id AND tick = h.tick LIMIT 1) k
WHERE h.topic_id = :topic

-- name: topic.move.mark -> rows
-- Marks for the events with these numbers that have none yet.
WITH i AS (
  INSERT INTO {mark} (seq, required, created_at)
  SELECT l.seq, t.{log_living}, l.created_at FROM {log} l CROSS JOIN (SELECT * FROM {topic} WHERE id = :topic) t
  WHERE l.shard = ANY(:shards::smallint[]) AND l.seq > :after AND l.seq <= :upto
  ORDER BY l.seq
  ON CONFLICT (seq) DO NOTHING RETURNING 1)
SELECT count(*) FROM i

-- name: topic.move.late -> rows
-- The numbers of what was written by transactions that were under way when the move began.
SELECT l.seq FROM unnest(:xids::text[]) AS x(xid) CROSS JOIN LATERAL (
  SELECT l.seq FROM {log} l WHERE l.xid = x.xid::xid8 AND l.shard = ANY(:shards::smallint[])) l
ORDER BY l.seq

-- name: topic.move.groups -> rows
SELECT id FROM {group} WHERE topic_id = :topic AND state <> 'cancelled' ORDER BY id

-- name: topic.move.without_bit -> rows
SELECT id FROM {group} WHERE topic_id = :topic AND state <> 'cancelled' AND bit IS NULL ORDER BY id

-- name: topic.move.give_bit -> count
UPDATE {group} SET bit = :bit WHERE id = :group

-- name: topic.move.no_bits -> count
UPDATE {group} SET bit = NULL WHERE topic_id = :topic AND bit IS NOT NULL
