-- How a tick is made, in one statement: the last one, whether it has missed anything, the lock, the new one.
--
--   snapshot   that of the statement. It sees the last tick, so it has all that the last one has: ticks are monotone
--   floor      the last number drawn, read before this transaction gets its own id
--   our id     taken after that: a transaction with a higher one draws numbers above `floor`
--   ceil       the last number drawn, read after the snapshot
--   number     the count of ticks, and 24 random bits below it. A crash or a fail-over may forget a tick. The next one has
--              the same count and another snapshot; in memory the two must not be taken for one another
--
-- A snapshot lists as running only ids below the newest that has ended (its xmax). Those between that and ours may be
-- running too, with numbers at or below `floor`: they are `late` as well.

-- name: topic.tick.make -> rows
-- The newest tick, made now if the last one has missed anything that can be seen: idle topics get no ticks. Many numbers
-- drawn since are a reason too, so that nobody looks through the rows of a large transaction again and again while it is
-- open. NULL: somebody else is at it, or was while we looked: then the last one is the head no more. A tick need not
-- survive a crash, as what was taken by it is forgotten with it; unless it is part of something that must. A transaction
-- that has its id already does not know the numbers drawn before that: the last tick's floor holds for it as well.
WITH last AS MATERIALIZED (
  SELECT h.tick, t.floor, :force OR CASE WHEN s.last_value - t.floor > :stale THEN true
    ELSE EXISTS (SELECT 1 FROM {log} l WHERE l.xid >= t.since ORDER BY l.xid LIMIT 1)
    OR EXISTS (
      SELECT 1 FROM unnest(t.late) AS x(xid)
      CROSS JOIN LATERAL (SELECT 1 FROM {log} l WHERE l.xid = x.xid LIMIT 1) l
      WHERE pg_visible_in_snapshot(x.xid, pg_current_snapshot()))
    END AS missed
  FROM {log_seq} s
  CROSS JOIN LATERAL (SELECT tick FROM {head} h WHERE h.topic_id = :topic ORDER BY h.tick DESC LIMIT 1) h
  CROSS JOIN LATERAL (SELECT * FROM {tick} t WHERE t.topic_id = :topic AND t.tick = h.tick LIMIT 1) t),
ready AS MATERIALIZED (
  SELECT last.tick, CASE WHEN pg_current_xact_id_if_assigned() IS NULL
                         THEN (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {log_seq})
                         ELSE last.floor END AS floor,
         CASE WHEN NOT :durable THEN set_config('synchronous_commit', 'off', true) END
  FROM last WHERE last.missed),
first AS MATERIALIZED (
  SELECT ready.tick, ready.floor FROM ready, {latch} k WHERE k.topic_id = :topic FOR UPDATE OF k SKIP LOCKED),
now AS MATERIALIZED (
  SELECT first.tick, first.floor, pg_current_snapshot() AS snapshot, pg_current_xact_id() AS ours FROM first),
gone AS (
  DELETE FROM {head} h USING now n WHERE h.topic_id = :topic AND h.tick = n.tick RETURNING n.*),
made AS (
  INSERT INTO {tick} (topic_id, tick, snapshot, since, late, floor, ceil, at)
  SELECT :topic, ((n.tick >> 24) + 1 << 24) + floor(random() * (1 << 24)::float8)::bigint, n.snapshot,
         greatest(pg_snapshot_xmax(n.snapshot), n.ours),
         ARRAY(SELECT pg_snapshot_xip(n.snapshot)
               UNION ALL
               SELECT g::text::xid8 FROM generate_series(pg_snapshot_xmax(n.snapshot)::text::bigint,
                                                         n.ours::text::bigint - 1) AS g), n.floor, s.last_value, {clock}
  FROM gone n, {log_seq} s
  RETURNING tick),
new AS (INSERT INTO {head} (topic_id, tick) SELECT :topic::integer, made.tick FROM made RETURNING tick)
SELECT CASE WHEN last.missed THEN (SELECT tick FROM new) ELSE last.tick END FROM last

-- name: topic.tick.wait -> rows
-- For an op that needs a tick of its own, kept with what it does.
SELECT 1 FROM {latch} WHERE topic_id = :topic FOR UPDATE
