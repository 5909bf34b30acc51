-- What is old and done with goes, in short transactions. An event is done with when
--
--   every group that keeps its claim (active or paused) has passed it, and no mark on it waits for a group
--   and it is older than `retention`; if no group was ever to have it (see {promise}), than `zero_retention`
--   always after `max_retention`, read or not
--
-- What a group that is not cancelled was still to have is counted in its row, in the transaction that takes it away.
-- Each transaction locks the topic row first, as a subscribe or a seek does, so no group can come to want what is
-- being deleted. Writers do not touch it.

-- name: topic.cleanup.lock -> rows
-- No row: somebody changes the topic's groups; there is a next time.
SELECT id FROM {topic} WHERE id = :topic FOR UPDATE SKIP LOCKED

-- name: topic.cleanup.sweep -> rows
-- Of each shard the next events by number, deleted where they may go. The page is read before anything is filtered: old
-- events that must stay cost a look, and the young ones behind them are not walked through. `more`: the page was full,
-- somebody is past some of it, and its last event is old enough that the next may be. No cleaner waits for another: what that one has locked is skipped.
-- Rows are deleted by their place and marks by an array: a join could be turned round and walk the whole table. Only what
-- lies in no partition is swept; partitions go as a whole.
{low},
page AS MATERIALIZED (
  SELECT s.shard, l.seq, l.xid, l.created_at,
         l.created_at < n.at - t.max_retention AS forced,
         coalesce(low.base IS NULL OR pg_visible_in_snapshot(l.xid, b.snapshot), false) AS passed
  FROM t, n, unnest(:shards::smallint[], :afters::bigint[]) AS s(shard, after)
  LEFT JOIN low ON low.shard = s.shard
  LEFT JOIN {tick} b ON b.topic_id = :topic AND b.tick = low.base
  CROSS JOIN LATERAL (
    SELECT l.seq, l.xid, l.created_at FROM {log_rest} l
    WHERE l.shard = s.shard AND l.seq > s.after ORDER BY l.seq LIMIT :limit) l),
old AS MATERIALIZED (
  SELECT p.shard, p.seq, p.xid, p.created_at, p.forced
  FROM page p {log_marks}, t, n
  WHERE p.forced OR (p.passed AND {aged} {log_closed})),
locked AS MATERIALIZED (
  SELECT l.place, o.* FROM old o CROSS JOIN LATERAL (
    SELECT l.ctid AS place FROM {log_rest} l WHERE l.shard = o.shard AND l.seq = o.seq FOR UPDATE SKIP LOCKED) l),
{places},
lost AS MATERIALIZED (
  SELECT q.id, count(*) AS events FROM locked e
  JOIN place q ON q.shard = e.shard AND (q.state NOT IN ({kept_states}) OR (SELECT bool_or(forced) FROM locked))
  WHERE (e.forced OR q.state NOT IN ({kept_states})) AND {unread} GROUP BY q.id),
gone AS (
  DELETE FROM {log_rest} l WHERE l.ctid = ANY(ARRAY(SELECT place FROM locked)) {log_same} RETURNING l.seq)
{log_unmark}
SELECT p.shard, p.last,
       p.count = :limit AND p.passed AND p.newest < n.at - least(t.retention, t.zero_retention, t.max_retention),
       (SELECT count(*) FROM gone),
       ARRAY(SELECT id FROM lost ORDER BY id), ARRAY(SELECT events FROM lost ORDER BY id)
FROM (SELECT shard, max(seq) AS last, max(created_at) AS newest, count(*) AS count, bool_or(passed OR forced) AS passed
      FROM page GROUP BY shard) p, t, n

-- name: topic.cleanup.backlog -> rows
-- How many of the oldest events could go and have not.
{low}
SELECT count(*) FROM (
  SELECT l.seq, l.xid, l.created_at, l.created_at < n.at - t.max_retention AS forced,
         coalesce(low.base IS NULL OR pg_visible_in_snapshot(l.xid, b.snapshot), false) AS passed
  FROM t, n, generate_series(0, (SELECT shards FROM t) - 1) AS s(shard)
  LEFT JOIN low ON low.shard = s.shard
  LEFT JOIN {tick} b ON b.topic_id = :topic AND b.tick = low.base
  CROSS JOIN LATERAL (
    SELECT l.seq, l.xid, l.created_at FROM {log_rest} l WHERE l.shard = s.shard ORDER BY l.seq LIMIT :limit) l) p
  {log_marks}, t, n
WHERE p.forced OR (p.passed AND {aged} {log_closed})

-- name: topic.cleanup.count_lost -> rows
UPDATE {group} g SET lost = g.lost + u.events
FROM unnest(:groups::integer[], :events::bigint[]) AS u(id, events) WHERE g.id = u.id
RETURNING g.name, u.events

-- name: topic.cleanup.passed_over -> rows
-- What a group loses in a shard when it is put forward to a tick.
WITH {places}
SELECT count(*) FROM place q CROSS JOIN {tick} k JOIN {log} e ON e.shard = q.shard
WHERE q.id = :group AND q.shard = :shard AND k.topic_id = :topic AND k.tick = :tick
  AND pg_visible_in_snapshot(e.xid, k.snapshot) AND {unread}

-- name: topic.cleanup.letters -> rows
-- Dead letters of groups, only where a retention for them is set.
WITH old AS MATERIALIZED (
  SELECT p.ctid AS place FROM {parked} p JOIN {group} g ON g.id = p.group_id
  WHERE p.state = 'dead' AND p.dead_at < {clock} - :retention::interval
    AND (g.on_exhausted <> 'park' OR g.state = 'cancelled')
  ORDER BY p.dead_at LIMIT :limit FOR UPDATE OF p SKIP LOCKED)
DELETE FROM {parked} p WHERE p.ctid = ANY(ARRAY(SELECT place FROM old)) RETURNING p.seq

-- name: topic.cleanup.groups -> rows
-- Dead and cancelled groups after their time. What is asked about is that group's own: a dead one stays while something
-- of it is parked, since it may come back; what a cancelled one parked goes with it. No open mark waits for either (marks
-- are released by sweeps that see all such groups).
SELECT g.id, t.name, g.name, g.state,
       g.state = 'dead' AND EXISTS (SELECT 1 FROM {parked} p WHERE p.group_id = g.id)
FROM {group} g JOIN {topic} t ON t.id = g.topic_id
WHERE g.topic_id = :topic AND g.state IN ('dead', 'cancelled')
  AND g.state_at < {clock} - :retention::interval
ORDER BY g.id

-- name: topic.cleanup.forget -> rows
DELETE FROM {group} g
WHERE g.id = :group AND g.state IN ('dead', 'cancelled') AND g.state_at < {clock} - :retention::interval
  AND (g.state = 'cancelled' OR NOT EXISTS (SELECT 1 FROM {parked} p WHERE p.group_id = g.id))
RETURNING id

-- name: topic.cleanup.thin -> rows
-- Old ticks, a page at a time, except those that something refers to, the first in each `grain` (seeks by time need them)
-- and tick 0. Nobody can come to refer to one of them: who subscribes or seeks holds the topic row, and a claim goes to
-- ticks only that are younger than `fresh`.
WITH n AS MATERIALIZED (SELECT {clock} AS at),
horizon AS MATERIALIZED (
  SELECT least(n.at, CASE WHEN :now::timestamptz IS NULL THEN (
    SELECT min(a.xact_start) FROM pg_stat_activity a WHERE a.datname = current_database()) END) - :fresh::interval AS at
  FROM n),
page AS MATERIALIZED (
  SELECT k.tick, k.at, CASE WHEN k.at < n.at - interval '1 day' THEN :coarse::interval ELSE :grain::interval END AS grain
  FROM {tick} k, horizon h, n
  WHERE k.topic_id = :topic AND k.tick > :after AND k.at < h.at
  ORDER BY k.tick LIMIT :limit),
twin AS MATERIALIZED (
  SELECT p.tick, date_bin(p.grain, p.at, timestamptz 'epoch')
                 = lag(date_bin(p.grain, p.at, timestamptz 'epoch')) OVER (ORDER BY p.tick) AS same
  FROM page p),
gone AS (
  DELETE FROM {tick} k
  WHERE k.topic_id = :topic AND k.tick = ANY(ARRAY(SELECT tick FROM twin WHERE same)) AND k.tick > 0
    AND NOT EXISTS (SELECT 1 FROM {head} h WHERE h.topic_id = :topic AND h.tick = k.tick)
    AND NOT EXISTS (SELECT 1 FROM {group} g JOIN {cursor} c ON c.group_id = g.id
                    WHERE g.topic_id = :topic AND k.tick IN (c.base, c.target))
    AND NOT EXISTS (SELECT 1 FROM {group} g JOIN {range} r ON r.group_id = g.id
                    WHERE g.topic_id = :topic AND k.tick IN (r.base, r.target))
    AND NOT EXISTS (SELECT 1 FROM {group} g WHERE g.topic_id = :topic AND g.start_tick = k.tick)
  RETURNING k.tick)
SELECT (SELECT count(*) FROM gone), max(page.tick), count(*) FROM page

-- name: topic.cleanup.zombies -> rows
-- Shards, before events past the retention, of active groups that have not moved at all for `zombie_ttl`, and the newest
-- tick that is itself past it: there they are put. A group that moves is slow, not gone, and max_retention ends its claim.
-- One that was paused, dead or without a sign has its whole time again from when it is back.
SELECT g.id, g.name, c.shard, c.base, k.tick
FROM {topic} t, (SELECT {clock} AS at) n, {group} g JOIN {cursor} c ON c.group_id = g.id,
     LATERAL (SELECT max(k.tick) AS tick FROM {tick} k WHERE k.topic_id = :topic AND k.at < n.at - t.retention) k
WHERE t.id = :topic AND g.topic_id = t.id AND g.state = 'active' AND c.base < k.tick
  AND g.alive_since < n.at - t.zombie_ttl
  AND NOT EXISTS (SELECT 1 FROM {cursor} m WHERE m.group_id = g.id AND m.moved_at >= n.at - t.zombie_ttl)
ORDER BY g.id, c.shard

-- name: topic.cleanup.advance -> count
-- What it has taken of an interval that reaches further stays taken.
UPDATE {cursor}
SET base = :tick, target = CASE WHEN target > :tick THEN target END, seq = CASE WHEN target > :tick THEN seq ELSE 0 END,
    moved_at = {clock}
WHERE group_id = :group AND shard = :shard AND base < :tick

-- name: topic.cleanup.lose -> count
DELETE FROM {range} WHERE group_id = :group AND shard = :shard AND target <= :tick

-- name: topic.cleanup.keep -> count
UPDATE {range} SET base = :tick WHERE group_id = :group AND shard = :shard AND base < :tick

-- name: topic.cleanup.forgive -> rows
-- A group that was put forward is not waited for any more: its bit leaves the open marks of that time.
WITH w AS MATERIALIZED (
  SELECT 1::bigint << g.bit AS bit, n.at, n.at - t.retention AS before
  FROM {topic} t JOIN {group} g ON g.topic_id = t.id, (SELECT {clock} AS at) n
  WHERE t.id = :topic AND g.id = :group),
p AS MATERIALIZED (
  SELECT m.seq FROM w, {mark} m
  WHERE m.completed_at IS NULL AND m.created_at < w.before AND m.required & ~m.done & w.bit <> 0
  ORDER BY m.seq LIMIT :limit FOR UPDATE OF m)
UPDATE {mark} m
SET required = m.required & ~w.bit,
    completed_at = CASE WHEN m.required & ~w.bit & ~m.done = 0 THEN w.at END
FROM w WHERE m.seq = ANY(ARRAY(SELECT seq FROM p)) RETURNING m.seq

-- name: topic.cleanup.forgive_wide -> rows
WITH w AS MATERIALIZED (
  SELECT n.at, n.at - t.retention AS before
  FROM {topic} t, (SELECT {clock} AS at) n WHERE t.id = :topic),
p AS MATERIALIZED (
  SELECT m.seq FROM w, {mark} m
  WHERE m.completed_at IS NULL AND m.created_at < w.before AND :group::integer = ANY(m.required)
    AND NOT EXISTS (SELECT 1 FROM {ack} a WHERE a.seq = m.seq AND a.group_id = :group)
  ORDER BY m.seq LIMIT :limit FOR UPDATE OF m)
UPDATE {mark} m
SET required = array_remove(m.required, :group::integer),
    completed_at = CASE WHEN array_remove(m.required, :group::integer)
                             OPERATOR(pg_catalog.<@) ARRAY(SELECT a.group_id FROM {ack} a WHERE a.seq = m.seq) THEN w.at END
FROM w WHERE m.seq = ANY(ARRAY(SELECT seq FROM p)) RETURNING m.seq
