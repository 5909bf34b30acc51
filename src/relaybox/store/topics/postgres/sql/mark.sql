-- Completion marks: for each event of a topic, the set of groups that must have it and the set of those that are done.
-- Sets, not counts: an ack of one group never stands in for another's. A complete mark is never changed again.
--
--   bitmap   both sets are bits of one narrow row, so an ack is one small update in place
--   acks     more than 64 groups: the required ones as an array, those done as rows of {ack} until the mark is complete
--
-- A statement that changes several marks locks them by seq first: no two can wait for each other.

-- name: topic.mark.create -> count
-- The room in each page keeps an ack on its page, where no index has to learn of it.
CREATE TABLE {mark} (
  seq          bigint      PRIMARY KEY,
  required     bigint      NOT NULL,
  done         bigint      NOT NULL DEFAULT 0,
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  completed_at timestamptz
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_insert_scale_factor = 0.0, autovacuum_vacuum_insert_threshold = 100000,
        autovacuum_analyze_scale_factor = 0.0, autovacuum_analyze_threshold = 50000, autovacuum_vacuum_cost_delay = 0)

-- name: topic.mark.create_wide -> count
CREATE TABLE {mark} (
  seq          bigint      PRIMARY KEY,
  required     integer[]   NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  completed_at timestamptz
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_insert_scale_factor = 0.0, autovacuum_vacuum_insert_threshold = 100000,
        autovacuum_analyze_scale_factor = 0.0, autovacuum_analyze_threshold = 50000, autovacuum_vacuum_cost_delay = 0)

-- name: topic.mark.create_acks -> count
CREATE TABLE {ack} (
  seq      bigint  NOT NULL,
  group_id integer NOT NULL,
  PRIMARY KEY (seq, group_id)
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0)

-- name: topic.mark.create_open -> count
-- The only index that an ack may have to touch, and only the last ack of an event. Old complete marks are found by seq.
CREATE INDEX "{mark_name}_open" ON {mark} (seq) WHERE completed_at IS NULL

-- name: topic.mark.drop -> count
DROP TABLE IF EXISTS {mark}, {ack}

-- name: topic.mark.ack -> rows
-- The bit, and the time when it was the last. A group that is not required is noted all the same, so that a backfill which
-- adds it later knows. Several are locked before, by a statement of its own: groups that stand at the same place wait for
-- each other there, and after a wait this one sees the rows as they are. In one statement with the lock it would see old
-- versions, and each row would have to be looked up and tested again.
WITH u AS (
  UPDATE {mark} m
  SET done = m.done | (1::bigint << :bit::integer),
      completed_at = CASE WHEN m.required <> 0 AND m.required & ~(m.done | (1::bigint << :bit::integer)) = 0
                          THEN {clock} END
  WHERE m.seq = ANY(:seqs::bigint[]) AND m.completed_at IS NULL AND m.done & (1::bigint << :bit::integer) = 0
  RETURNING m.completed_at)
SELECT count(completed_at) FROM u

-- name: topic.mark.lock_unacked -> rows
-- By one number at a time, not by ANY: a row that changed while we waited is tested again, and a test against an array
-- takes as long as the array is.
SELECT count(*)
FROM (SELECT u.seq FROM unnest(:seqs::bigint[]) AS u(seq) ORDER BY u.seq) u
CROSS JOIN LATERAL (
  SELECT 1 FROM {mark} m
  WHERE m.seq = u.seq AND m.completed_at IS NULL AND m.done & (1::bigint << :bit::integer) = 0
  FOR UPDATE) p

-- name: topic.mark.lock -> rows
SELECT seq FROM {mark} WHERE seq = ANY(:seqs::bigint[]) AND completed_at IS NULL ORDER BY seq FOR UPDATE

-- name: topic.mark.insert_acks -> count
INSERT INTO {ack} (seq, group_id) SELECT u.seq, :group FROM unnest(:seqs::bigint[]) AS u(seq)
ON CONFLICT (seq, group_id) DO NOTHING

-- name: topic.mark.complete_wide -> rows
-- After the acks are there and while the marks are locked.
UPDATE {mark} m SET completed_at = {clock}
WHERE m.seq = ANY(:seqs::bigint[]) AND m.completed_at IS NULL AND m.required OPERATOR(pg_catalog.<>) '{}'
  AND m.required OPERATOR(pg_catalog.<@) ARRAY(SELECT a.group_id FROM {ack} a WHERE a.seq = m.seq)
RETURNING m.seq

-- name: topic.mark.forget_acks -> count
DELETE FROM {ack} WHERE seq = ANY(:seqs::bigint[])

-- name: topic.mark.release -> rows
-- Takes everybody who is not alive off open marks, and completes those that waited for nobody else. The topic's row says
-- who is; its lock keeps it so for as long as this takes.
WITH t AS MATERIALIZED (SELECT required FROM {topic} WHERE id = :topic FOR SHARE),
p AS MATERIALIZED (
  SELECT m.seq, t.required AS living FROM t, {mark} m
  WHERE m.completed_at IS NULL AND m.required & ~t.required <> 0
  ORDER BY m.seq LIMIT :limit FOR UPDATE OF m)
UPDATE {mark} m
SET required = m.required & p.living, completed_at = CASE WHEN m.required & p.living & ~m.done = 0 THEN {clock} END
FROM p WHERE m.seq = p.seq
RETURNING m.completed_at IS NOT NULL

-- name: topic.mark.lock_wide -> rows
WITH t AS MATERIALIZED (SELECT audience FROM {topic} WHERE id = :topic FOR SHARE)
SELECT m.seq, t.audience FROM t, {mark} m
WHERE m.completed_at IS NULL AND NOT m.required OPERATOR(pg_catalog.<@) t.audience
ORDER BY m.seq LIMIT :limit FOR UPDATE OF m

-- name: topic.mark.release_wide -> rows
UPDATE {mark} m
SET required = r.living,
    completed_at = CASE WHEN r.living OPERATOR(pg_catalog.<@) ARRAY(SELECT a.group_id FROM {ack} a WHERE a.seq = m.seq) THEN {clock} END
FROM (SELECT o.seq, ARRAY(SELECT g FROM unnest(o.required) AS g WHERE g = ANY(:audience::integer[])) AS living
      FROM {mark} o WHERE o.seq = ANY(:seqs::bigint[])) r
WHERE m.seq = r.seq
RETURNING m.seq, m.completed_at IS NOT NULL

-- name: topic.mark.show -> rows
-- Who must have an event and who is done with it, by name.
SELECT m.seq, m.completed_at,
       ARRAY(SELECT g.name FROM {group} g WHERE g.topic_id = :topic AND m.required & (1::bigint << g.bit) <> 0 ORDER BY 1),
       ARRAY(SELECT g.name FROM {group} g WHERE g.topic_id = :topic AND m.done & (1::bigint << g.bit) <> 0 ORDER BY 1)
FROM {mark} m WHERE m.seq = ANY(:seqs::bigint[]) ORDER BY m.seq

-- name: topic.mark.show_wide -> rows
-- Acks are kept until an event is complete; then all who were required are done.
SELECT m.seq, m.completed_at,
       ARRAY(SELECT g.name FROM {group} g WHERE g.id = ANY(m.required) ORDER BY 1),
       ARRAY(SELECT g.name FROM {group} g
             WHERE (m.completed_at IS NOT NULL AND g.id = ANY(m.required))
                OR EXISTS (SELECT 1 FROM {ack} a WHERE a.seq = m.seq AND a.group_id = g.id) ORDER BY 1)
FROM {mark} m WHERE m.seq = ANY(:seqs::bigint[]) ORDER BY m.seq

-- name: topic.mark.show_offset -> rows
-- Without marks the places of the groups say it: who began before the event, and who is past it and has it not parked.
WITH {places},
e AS MATERIALIZED (
  SELECT l.seq, l.xid, l.shard, l.created_at FROM {topic} t CROSS JOIN generate_series(0, t.shards - 1) AS s(shard)
  JOIN {log} l ON l.shard = s.shard AND l.seq = ANY(:seqs::bigint[]) WHERE t.id = :topic),
w AS MATERIALIZED (
  SELECT e.seq, g.name, g.state IN ({required_states}) AS required,
         NOT ({unread}) AND NOT EXISTS (
           SELECT 1 FROM {parked} p WHERE p.group_id = q.id AND p.seq = e.seq AND p.state <> 'dead') AS done
  FROM e JOIN place q ON q.shard = e.shard JOIN {group} g ON g.id = q.id
  LEFT JOIN {tick} b ON b.topic_id = :topic AND b.tick = g.start_tick
  WHERE e.seq >= g.first_seq AND (g.since IS NULL OR e.created_at >= g.since)
    AND ({unread} OR NOT coalesce(pg_visible_in_snapshot(e.xid, b.snapshot), false)))
SELECT e.seq, NULL::timestamptz, ARRAY(SELECT w.name FROM w WHERE w.seq = e.seq AND w.required ORDER BY 1),
       ARRAY(SELECT w.name FROM w WHERE w.seq = e.seq AND w.done ORDER BY 1)
FROM e ORDER BY e.seq

-- name: topic.mark.show_rows -> rows
-- A queue has one group; it is done with what neither waits nor is dead.
SELECT s.seq, NULL::timestamptz, ARRAY['default'], CASE WHEN s.status = 1 THEN ARRAY['default'] ELSE '{}' END
FROM {queue_status} s WHERE :topic::integer IS NOT NULL AND s.seq = ANY(:seqs::bigint[]) ORDER BY s.seq

-- name: topic.mark.force -> rows
-- Completes open marks that are older than `before`, even if groups still wait.
WITH p AS MATERIALIZED (
  SELECT seq FROM {mark} WHERE completed_at IS NULL AND created_at < :before
  ORDER BY seq LIMIT :limit FOR UPDATE)
UPDATE {mark} m SET completed_at = {clock} FROM p WHERE m.seq = p.seq
RETURNING m.seq

-- name: topic.mark.window -> rows
-- From the next open mark on, so many numbers: which of their events a group has left behind (or never gets, because of
-- where it began) and which it will still be given or has under way. Its cursor is past an event that it neither holds nor
-- has parked: only then is it done with it, for good. Without an open mark the first column is NULL.
WITH w AS MATERIALIZED (
  SELECT f.seq AS first, least(f.seq + :limit::bigint - 1, :upto) AS last
  FROM (SELECT seq FROM {mark} WHERE completed_at IS NULL AND seq > :after AND seq <= :upto ORDER BY seq LIMIT 1) f),
e AS MATERIALIZED (
  SELECT l.seq, l.xid, l.shard, l.created_at FROM {log} l
  CROSS JOIN LATERAL (SELECT 1 FROM {mark} m WHERE m.seq = l.seq AND m.completed_at IS NULL LIMIT 1) o
  WHERE l.shard = ANY(:shards::smallint[]) AND l.seq >= (SELECT first FROM w) AND l.seq <= (SELECT last FROM w)),
c AS MATERIALIZED (
  SELECT c.group_id, c.shard, c.seq, b.snapshot AS base, t.snapshot AS target, g.first_seq, g.since
  FROM {group} g JOIN {cursor} c ON c.group_id = g.id
  CROSS JOIN LATERAL (SELECT snapshot FROM {tick} WHERE topic_id = g.topic_id AND tick = c.base LIMIT 1) b
  LEFT JOIN LATERAL (SELECT snapshot FROM {tick} WHERE topic_id = g.topic_id AND tick = c.target LIMIT 1) t ON true
  WHERE g.id = :group),
r AS MATERIALIZED (
  SELECT r.shard, r.after, r.upto, r.finished, b.snapshot AS base, t.snapshot AS target
  FROM {group} g JOIN {range} r ON r.group_id = g.id
  CROSS JOIN LATERAL (SELECT snapshot FROM {tick} WHERE topic_id = g.topic_id AND tick = r.base LIMIT 1) b
  CROSS JOIN LATERAL (SELECT snapshot FROM {tick} WHERE topic_id = g.topic_id AND tick = r.target LIMIT 1) t
  WHERE g.id = :group),
j AS MATERIALIZED (
  SELECT e.seq,
         (e.seq < c.first_seq OR coalesce(e.created_at < c.since, false)
          OR pg_visible_in_snapshot(e.xid, c.base)
          OR coalesce(e.seq <= c.seq AND pg_visible_in_snapshot(e.xid, c.target), false))
         AND NOT EXISTS (SELECT 1 FROM r
                         WHERE r.shard = e.shard AND e.seq > r.after AND e.seq <= r.upto
                           AND pg_visible_in_snapshot(e.xid, r.target) AND NOT pg_visible_in_snapshot(e.xid, r.base)
                           AND NOT e.seq = ANY(coalesce(r.finished, '{}')))
         AND NOT EXISTS (SELECT 1 FROM {parked} p WHERE p.group_id = c.group_id AND p.seq = e.seq AND p.state <> 'dead')
         AS passed
  FROM e JOIN c ON c.shard = e.shard)
SELECT (SELECT last FROM w),
       coalesce(array_agg(seq ORDER BY seq) FILTER (WHERE passed), '{}'),
       coalesce(array_agg(seq ORDER BY seq) FILTER (WHERE NOT passed), '{}')
FROM j
