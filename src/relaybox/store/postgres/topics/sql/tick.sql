-- How a tick is made, in one transaction: news, lock, make.
--
--   floor      the last number drawn, read before this transaction gets its own id
--   our id     taken after that: whoever has a higher one draws numbers above `floor`
--   snapshot   in a later statement than the lock, so ticks are monotone
--   ceil       the last number drawn, read after the snapshot
--
-- A snapshot lists as running only ids below the newest that has ended (its xmax). Those between that and ours may be
-- running too, with numbers at or below `floor`: they are `late` as well.

-- name: topic.tick.news -> rows
-- The newest tick, and whether it has missed anything that can be seen now: idle topics get no ticks. Many numbers drawn
-- since are a reason too, so that nobody looks through the rows of a large transaction again and again while it is open.
SELECT h.tick,
  CASE WHEN s.last_value - t.floor > :stale THEN true
  ELSE EXISTS (SELECT 1 FROM {log} l WHERE l.xid >= t.since ORDER BY l.xid LIMIT 1)
  OR EXISTS (
    SELECT 1 FROM unnest(t.late) AS x(xid)
    CROSS JOIN LATERAL (SELECT 1 FROM {log} l WHERE l.xid = x.xid LIMIT 1) l
    WHERE pg_visible_in_snapshot(x.xid, pg_current_snapshot()))
  END
FROM {log_seq} s
CROSS JOIN LATERAL (SELECT tick FROM {head} h WHERE h.topic_id = :topic ORDER BY h.tick DESC LIMIT 1) h
CROSS JOIN LATERAL (SELECT * FROM {tick} t WHERE t.topic_id = :topic AND t.tick = h.tick LIMIT 1) t

-- name: topic.tick.lock -> rows
-- The newest tick as it was before the lock, and the floor. No row: somebody is at it. A transaction that has its id
-- already does not know the numbers drawn before that: the last tick's floor holds for it as well. A tick need not
-- survive a crash: what was taken by it is forgotten with it.
SELECT f.tick, f.floor FROM (
  SELECT h.tick, CASE WHEN pg_current_xact_id_if_assigned() IS NULL
                      THEN (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {log_seq})
                      ELSE t.floor END AS floor,
         set_config('synchronous_commit', 'off', true)
  FROM (SELECT tick FROM {head} h WHERE h.topic_id = :topic ORDER BY h.tick DESC LIMIT 1) h
  CROSS JOIN LATERAL (SELECT * FROM {tick} t WHERE t.topic_id = :topic AND t.tick = h.tick LIMIT 1) t
  OFFSET 0) f
WHERE pg_try_advisory_xact_lock('{head}'::regclass::oid::integer, :topic)

-- name: topic.tick.wait -> rows
-- The same for whoever needs a tick of his own, kept with what he does.
SELECT f.tick, f.floor FROM (
  SELECT h.tick, CASE WHEN pg_current_xact_id_if_assigned() IS NULL
                      THEN (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {log_seq})
                      ELSE t.floor END AS floor
  FROM (SELECT tick FROM {head} h WHERE h.topic_id = :topic ORDER BY h.tick DESC LIMIT 1) h
  CROSS JOIN LATERAL (SELECT * FROM {tick} t WHERE t.topic_id = :topic AND t.tick = h.tick LIMIT 1) t
  OFFSET 0) f
WHERE pg_advisory_xact_lock('{head}'::regclass::oid::integer, :topic) IS NOT NULL

-- name: topic.tick.make -> rows
WITH now AS MATERIALIZED (
  SELECT pg_current_snapshot() AS snapshot, pg_current_xact_id() AS ours, clock_timestamp() AS at),
last AS MATERIALIZED (SELECT tick FROM {head} h WHERE h.topic_id = :topic ORDER BY h.tick DESC LIMIT 1),
made AS (
  INSERT INTO {tick} (topic_id, tick, snapshot, since, late, floor, ceil, at)
  SELECT :topic, last.tick + 1, n.snapshot, greatest(pg_snapshot_xmax(n.snapshot), n.ours),
         ARRAY(SELECT pg_snapshot_xip(n.snapshot)
               UNION ALL
               SELECT g::text::xid8 FROM generate_series(pg_snapshot_xmax(n.snapshot)::text::bigint,
                                                         n.ours::text::bigint - 1) AS g),
         :floor::bigint, s.last_value, coalesce(:now, n.at)
  FROM now n, last, {log_seq} s
  RETURNING tick),
gone AS (DELETE FROM {head} h USING last WHERE h.topic_id = :topic AND h.tick = last.tick)
INSERT INTO {head} (topic_id, tick) SELECT :topic::integer, made.tick FROM made RETURNING tick
