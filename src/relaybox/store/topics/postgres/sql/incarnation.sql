-- Transaction numbers mean something only in the cluster that gave them. Copied into another (a dump and restore, logical
-- replication) they are compared with numbers of that one, and events are passed over or never come.

-- name: topic.incarnation.check -> rows
SELECT i.system_identifier, s.system_identifier, i.timeline, c.timeline_id
FROM {incarnation} i, pg_control_system() s, pg_control_checkpoint() c

-- name: topic.incarnation.note -> count
UPDATE {incarnation} i
SET system_identifier = s.system_identifier, timeline = c.timeline_id, noted_at = clock_timestamp()
FROM pg_control_system() s, pg_control_checkpoint() c

-- name: topic.incarnation.living -> rows
SELECT count(*) FROM {member} WHERE expires_at > {clock}

-- name: topic.incarnation.places -> rows
-- Where each group goes on in a shard: before its first event that it may not have had, by the old numbers, which can still
-- be compared with each other; what it had taken is unread again. NULL: it has had everything. A tick made here since (its
-- numbers are lower than those of an earlier one) says nothing about the old events: such a group gets everything again.
SELECT c.group_id, CASE
  WHEN b.tick IS NULL OR EXISTS (
    SELECT 1 FROM {tick} o WHERE o.topic_id = :topic AND o.tick < b.tick AND o.since > b.since) THEN 0
  ELSE least(
    (SELECT min(r.after) FROM {range} r WHERE r.group_id = c.group_id AND r.shard = c.shard),
    (SELECT min(l.seq) - 1 FROM {log} l
     WHERE l.shard = c.shard AND (NOT pg_visible_in_snapshot(l.xid, b.snapshot) OR l.seq > b.ceil))) END
FROM {group} g JOIN {cursor} c ON c.group_id = g.id LEFT JOIN {tick} b ON b.topic_id = :topic AND b.tick = c.base
WHERE g.topic_id = :topic AND c.shard = :shard AND c.target IS DISTINCT FROM 0
ORDER BY c.group_id

-- name: topic.incarnation.park -> count
-- Tick 0 as the target: the place is known, the events are not stamped yet. -1: nothing is left.
UPDATE {cursor} SET base = 0, target = 0, seq = :seq, epoch = epoch + 1 WHERE group_id = :group AND shard = :shard

-- name: topic.incarnation.ranges -> count
DELETE FROM {range} r USING {group} g WHERE g.id = r.group_id AND g.topic_id = :topic AND r.shard = :shard

-- name: topic.incarnation.stamp -> rows
-- Events of before get the lowest number there is: every snapshot has seen it. A page at a time.
WITH page AS MATERIALIZED (
  SELECT seq FROM {log} WHERE shard = :shard AND seq > :after ORDER BY seq LIMIT :limit),
done AS (
  UPDATE {log} l SET xid = '3'
  WHERE l.shard = :shard AND l.seq = ANY(ARRAY(SELECT seq FROM page)) AND l.xid <> '3' RETURNING l.seq)
SELECT max(page.seq), count(*), (SELECT count(*) FROM done) FROM page

-- name: topic.incarnation.forget -> count
-- Ticks of before mean nothing any more.
DELETE FROM {tick} WHERE topic_id = :topic AND tick > 0 AND tick < :tick

-- name: topic.incarnation.resume -> count
UPDATE {cursor} c
SET base = CASE WHEN c.seq < 0 THEN :tick ELSE 0 END, target = CASE WHEN c.seq < 0 THEN NULL ELSE :tick END,
    seq = greatest(c.seq, 0), moved_at = {clock}
FROM {group} g WHERE g.id = c.group_id AND g.topic_id = :topic AND c.target = 0

-- name: topic.incarnation.starts -> count
UPDATE {group} SET start_tick = 0 WHERE topic_id = :topic

-- name: topic.incarnation.promise -> count
-- Which of the old events somebody was to have cannot be told any more: all, if there is any promise.
WITH p AS (DELETE FROM {promise} WHERE topic_id = :topic RETURNING until IS NULL AS open)
INSERT INTO {promise} (topic_id, tick, since, until, ended_at)
SELECT :topic::integer, 0, '1:1:', CASE WHEN NOT bool_or(p.open) THEN pg_current_snapshot() END,
       CASE WHEN NOT bool_or(p.open) THEN {clock} END
FROM p HAVING count(*) > 0
