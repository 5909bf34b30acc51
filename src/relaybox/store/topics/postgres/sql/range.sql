-- Claiming a part of a log, in one transaction: lock, look, (retake), read, take.
--
-- Joins to single rows are LATERAL with LIMIT 1: their plans are made while the tables are small, and stay.

-- name: topic.range.lock -> rows
-- The cursors with something unread or left behind, oldest first, that nobody else is at; no more than a fair share, or
-- one member's claim would leave the others nothing to lock. Whether a shard is free is asked again after the lock
-- (`look`): what this statement sees of other tables may be older than its locks. A crash may forget a claim: cursor and
-- range go together, and settling writes it down.
WITH g AS MATERIALIZED (
  SELECT g.id, g.state, g.ordered, h.tick, n.at
  FROM (SELECT {clock} AS at, set_config('synchronous_commit', 'off', true)) n, {group} g
  CROSS JOIN LATERAL (SELECT tick FROM {head} h WHERE h.topic_id = g.topic_id ORDER BY h.tick DESC LIMIT 1) h
  WHERE g.id = :group),
v AS MATERIALIZED (
  SELECT c.shard, c.version, c.moved_at, c.target IS NOT NULL OR c.base < g.tick AS behind, r.*
  FROM g CROSS JOIN generate_series(0, :count - 1) AS s(shard)
  CROSS JOIN LATERAL (SELECT * FROM {cursor} c WHERE c.group_id = g.id AND c.shard = s.shard
                      ORDER BY c.version DESC LIMIT 1) c
  CROSS JOIN LATERAL (
    SELECT coalesce(bool_or(m.id <> :member), false) AS taken, coalesce(bool_or(m.id = :member), false) AS ours,
           coalesce(bool_or(m.id IS NULL), false) AS left
    FROM {range} r LEFT JOIN LATERAL (
      SELECT m.id FROM {member} m WHERE m.id = r.owner AND m.expires_at > g.at AND r.until > g.at LIMIT 1) m ON true
    WHERE r.group_id = g.id AND r.shard = s.shard AND r.n >= c.low) r)
SELECT g.state, g.tick, (SELECT count(*) FROM v WHERE v.behind),
       c.shard, c.base, c.target, c.seq, c.version, c.moved_at < g.at - interval '1 second',
       c.moved_at < g.at - interval '15 seconds'
FROM g LEFT JOIN LATERAL (
  SELECT c.* FROM (
    SELECT v.shard, v.version FROM v
    WHERE g.state = 'active' AND (v.behind OR v.left) AND NOT (g.ordered AND v.taken)
    ORDER BY v.moved_at < g.at - interval '15 seconds' DESC, g.ordered AND v.ours DESC, v.moved_at, v.shard
    OFFSET 0) v
  CROSS JOIN LATERAL (
    SELECT * FROM {cursor} c WHERE c.group_id = g.id AND c.shard = v.shard AND c.version = v.version
    FOR UPDATE SKIP LOCKED) c
  LIMIT 1 + :count / greatest(1, (
    SELECT count(*) FROM {member} m WHERE m.group_id = g.id AND m.expires_at > g.at))) c ON true

-- name: topic.range.look -> rows
-- What is known of the group and its ranges. `held`: keys that have parked events, each by the head of its queue. `goal`:
-- only as long as no cleanup of ticks can have come to it; later it may be gone before we refer to it.
SELECT g.since, g.first_seq, h.tick, h.members, h.alive, h.held,
       r.token, r.shard, r.base, r.target, r.after, r.upto, r.attempts, r.finished,
       r.until::text, r.owner, m.id IS NOT NULL, r.events, r.n, h.goal
FROM (SELECT {clock} AS at) n CROSS JOIN {group} g
CROSS JOIN LATERAL (
  SELECT (SELECT tick FROM {head} WHERE topic_id = :topic ORDER BY tick DESC LIMIT 1) AS tick,
         (SELECT t.tick FROM {tick} t WHERE t.topic_id = :topic AND t.tick = :goal::bigint
          AND t.at > n.at - interval '4 minutes') AS goal,
         (SELECT count(*) FROM {member} WHERE group_id = :group AND expires_at > n.at) AS members,
         EXISTS (SELECT 1 FROM {member} WHERE id = :member AND group_id = :group AND expires_at > n.at) AS alive,
         ARRAY(SELECT key_hash FROM {parked}
               WHERE group_id = :group AND shard = ANY(:shards::smallint[]) AND state = 'retry' AND :ordered
               UNION
               SELECT key_hash FROM {parked}
               WHERE group_id = :group AND shard = ANY(:shards::smallint[]) AND state = 'dead'
                 AND :ordered AND g.on_exhausted = 'park') AS held) h
LEFT JOIN (
  SELECT r.* FROM generate_series(0, :count - 1) AS s(shard)
  CROSS JOIN LATERAL (SELECT c.low FROM {cursor} c WHERE c.group_id = :group AND c.shard = s.shard
                      ORDER BY c.version DESC LIMIT 1) c
  CROSS JOIN LATERAL (SELECT * FROM {range} r WHERE r.group_id = :group AND r.shard = s.shard AND r.n >= c.low
                      ORDER BY r.n OFFSET 0) r) r ON true
LEFT JOIN LATERAL (
  SELECT m.id FROM {member} m WHERE m.id = r.owner AND m.expires_at > n.at AND r.until > n.at LIMIT 1) m ON true
WHERE g.id = :group
ORDER BY r.shard, r.n

-- name: topic.range.retake -> rows
-- Ranges that were left behind, with a new token and another attempt. Not those that changed since they were looked at.
WITH l AS MATERIALIZED (
  SELECT r.token, u.fresh FROM unnest(:tokens::bigint[], :fresh::bigint[], :untils::text[]) AS u(token, fresh, until)
  JOIN {range} r ON r.token = u.token AND r.until::text = u.until
  ORDER BY r.token FOR UPDATE OF r SKIP LOCKED)
UPDATE {range} r SET token = l.fresh, owner = :member, attempts = r.attempts + 1, until = {clock} + {lease_time}
FROM l WHERE r.token = l.token
RETURNING r.token

-- name: topic.range.read -> rows
-- The events of places. A place is what tick `target` had seen and `base` had not: transactions that got their number
-- after `base`, and those that were under way then. Two indexes, each read in order as far as the page goes; the reader
-- merges them, which is nearly always nothing to do. No page ends between two of the same number, which only another writer
-- than ours makes: the second would be passed over. Where what was late fills the page, nothing behind its last number
-- is looked at: a large transaction is read in pages without passing over it again for each. Times are bytes until
-- somebody asks for them. A payload of more than :usual bytes stays where it is, and its size comes instead.
SELECT l.seq, l.event_id, l.event_type, l.aggregate_type, l.aggregate_id, l.tenant_id, l.content_type,
       CASE WHEN octet_length(l.payload) <= :usual THEN l.payload END, l.headers, timestamptz_send(l.occurred_at),
       CASE WHEN octet_length(l.payload) > :usual THEN octet_length(l.payload) END, timestamptz_send(l.created_at), r.n
FROM unnest(:shards::smallint[], :bases::bigint[], :targets::bigint[], :afters::bigint[], :uptos::bigint[],
            :limits::bigint[]) WITH ORDINALITY AS r(shard, base, target, after, upto, most, n)
CROSS JOIN LATERAL (SELECT * FROM {tick} t WHERE t.topic_id = :topic AND t.tick = r.base LIMIT 1) b
CROSS JOIN LATERAL (SELECT * FROM {tick} t WHERE t.topic_id = :topic AND t.tick = r.target LIMIT 1) t
CROSS JOIN LATERAL (
  WITH late AS MATERIALIZED (
    SELECT e.* FROM unnest(b.late) AS x(xid)
    CROSS JOIN LATERAL (
      SELECT l.* FROM {log} l
      WHERE l.xid = x.xid AND l.shard = r.shard AND l.seq > r.after AND l.seq <= r.upto
      ORDER BY l.seq FETCH FIRST r.most ROWS WITH TIES) e
    WHERE pg_visible_in_snapshot(x.xid, t.snapshot)
    ORDER BY e.seq FETCH FIRST r.most ROWS WITH TIES)
  SELECT * FROM late
  UNION ALL
  (SELECT l.* FROM {log} l
   WHERE l.shard = r.shard AND l.seq > greatest(r.after, b.floor)
     AND l.seq <= least(r.upto, t.ceil, (SELECT max(seq) FROM late HAVING count(*) >= r.most))
     AND l.xid >= b.since AND pg_visible_in_snapshot(l.xid, t.snapshot)
   ORDER BY l.seq FETCH FIRST r.most ROWS WITH TIES)) l

-- name: topic.range.payloads -> rows
-- Of events whose payload a read has left where it is, by their place in the list.
SELECT u.n, l.payload
FROM unnest(:shards::smallint[], :seqs::bigint[], :event_ids::text[]) WITH ORDINALITY AS u(shard, seq, event_id, n)
CROSS JOIN LATERAL (
  SELECT l.payload FROM {log} l
  WHERE l.shard = u.shard AND l.seq = u.seq AND l.event_id IS NOT DISTINCT FROM u.event_id LIMIT 1) l

-- name: topic.range.take -> count
-- Both halves of a claim: the cursors move on, and what they passed is in ranges.
WITH u AS MATERIALIZED (
  SELECT * FROM unnest(:shards::smallint[], :versions::bigint[], :bases::bigint[], :targets::bigint[], :seqs::bigint[],
                       :lows::bigint[]) AS u(shard, version, base, target, seq, low)),
gone AS (
  DELETE FROM {cursor} c USING u WHERE c.group_id = :group AND c.shard = u.shard AND c.version = u.version
  RETURNING c.shard, c.epoch),
moved AS (
  INSERT INTO {cursor} (group_id, shard, base, target, seq, epoch, moved_at, version, low)
  SELECT :group::integer, u.shard, u.base, u.target, u.seq, gone.epoch, {clock}, u.version + 1, u.low
  FROM u JOIN gone ON gone.shard = u.shard)
INSERT INTO {range} (token, group_id, shard, n, base, target, after, upto, owner, until, attempts, events)
SELECT r.token, :group, r.shard, r.n, r.base, r.target, r.after, r.upto, :member, {clock} + {lease_time}, 1, r.events
FROM unnest(:tokens::bigint[], :range_shards::smallint[], :numbers::bigint[], :range_bases::bigint[],
            :range_targets::bigint[], :afters::bigint[], :uptos::bigint[], :events::integer[])
     AS r(token, shard, n, base, target, after, upto, events)

-- name: topic.range.early -> rows
-- Which of these have another one of their shard before them than those in :before.
SELECT r.token FROM {range} r
WHERE r.token = ANY(:tokens::bigint[]) AND EXISTS (
  SELECT 1 FROM {range} e
  WHERE e.group_id = r.group_id AND e.shard = r.shard AND e.n < r.n AND e.token <> ALL(:before::bigint[]))

-- name: topic.range.finish -> rows
-- Whatever has another token by now is not ours to finish.
DELETE FROM {range} WHERE token = ANY(:tokens::bigint[]) RETURNING token

-- name: topic.range.give -> rows
-- Given back: the next claim may have it at once, and no attempt is counted.
UPDATE {range} r SET owner = 0, until = {clock}, attempts = greatest(0, r.attempts - 1),
       finished = string_to_array(u.finished, ',')::bigint[]
FROM unnest(:tokens::bigint[], :finished::text[]) AS u(token, finished)
WHERE r.token = u.token
RETURNING r.token

-- name: topic.range.renew -> rows
-- What has expired is not renewed, although nobody may have taken it yet; nor what belongs to a member that is no more.
-- Answers until when, by the database's clock, and the tokens that are held until then.
WITH n AS MATERIALIZED (SELECT {clock} AS at),
r AS (
  UPDATE {range} r SET until = n.at + {lease_time}
  FROM n WHERE r.token = ANY(:tokens::bigint[]) AND r.until > n.at
    AND (SELECT m.id FROM {member} m WHERE m.id = r.owner LIMIT 1) IS NOT NULL
  RETURNING r.token),
p AS (
  UPDATE {parked} p SET until = n.at + {lease_time}, due = n.at + {lease_time}
  FROM n WHERE p.group_id = :group AND p.token = ANY(:tokens::bigint[]) AND p.until > n.at
    AND (SELECT m.id FROM {member} m WHERE m.id = p.owner LIMIT 1) IS NOT NULL
  RETURNING p.token)
SELECT n.at + {lease_time}, ARRAY(SELECT token FROM r UNION ALL SELECT token FROM p) FROM n

-- name: topic.range.cursors -> rows
SELECT count(*) FROM {cursor} WHERE group_id = :group

-- name: topic.range.wait -> rows
-- Until no claim of the group is under way. Fewer rows than cursors: one was replaced meanwhile; ask again.
SELECT shard FROM {cursor} WHERE group_id = :group ORDER BY shard FOR UPDATE

-- name: topic.range.abandon -> count
-- What this member took and does not know of: nobody's fault.
WITH p AS (
  UPDATE {parked} p SET token = NULL, owner = NULL, until = NULL, attempts = p.attempts - 1, due = {clock}
  WHERE p.group_id = :group AND p.owner = :member AND p.state = 'retry' AND p.token <> ALL(:known::bigint[]))
UPDATE {range} r SET owner = 0, until = {clock}, attempts = greatest(0, r.attempts - 1)
WHERE r.group_id = :group AND r.owner = :member AND r.token <> ALL(:known::bigint[])
