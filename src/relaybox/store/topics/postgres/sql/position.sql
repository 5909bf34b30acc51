-- name: topic.position.start -> count
-- What the group's members pass over from now on.
UPDATE {group} SET since = :since, first_seq = :first WHERE id = :group

-- name: topic.position.place -> count
UPDATE {cursor} c
SET base = :base, target = NULL, seq = 0, epoch = c.epoch + 1, moved_at = {clock}
WHERE c.group_id = :group

-- name: topic.position.drop -> count
-- Nothing that was taken before counts any more.
DELETE FROM {range} WHERE group_id = :group

-- name: topic.position.unpark -> rows
-- What comes again from the log is not tried from here as well.
DELETE FROM {parked} p USING {tick} b, {log} l
WHERE b.topic_id = :topic AND b.tick = :base AND p.group_id = :group AND p.seq >= :first
  AND (:since::timestamptz IS NULL OR p.created_at >= :since)
  AND l.shard = p.shard AND l.seq = p.seq AND NOT pg_visible_in_snapshot(l.xid, b.snapshot)
RETURNING p.key_hash

-- name: topic.position.lag -> rows
-- What is unread in each shard: the rest of the part it is reading, and what that part's end had not seen. No more than
-- :most of each are counted; where there are more, `last` says how far that was.
SELECT c.shard, l.events, l.more, l.created_at, l.first, l.last, s.last_value
FROM {group} g CROSS JOIN {log_seq} s CROSS JOIN generate_series(0, :shards - 1) AS n(shard)
CROSS JOIN LATERAL (SELECT * FROM {cursor} c WHERE c.group_id = g.id AND c.shard = n.shard
                    ORDER BY c.version DESC LIMIT 1) c
CROSS JOIN LATERAL (SELECT * FROM {tick} t WHERE t.topic_id = :topic AND t.tick = c.base LIMIT 1) b
CROSS JOIN LATERAL (
  SELECT * FROM {tick} t WHERE t.topic_id = :topic AND t.tick = coalesce(c.target, c.base) LIMIT 1) t
CROSS JOIN LATERAL (
  SELECT count(*) AS events, min(least(greatest(created_at, {first_time}), {last_time})) AS created_at, min(seq) AS first, max(seq) AS last,
         count(*) FILTER (WHERE part = 1) >= :most OR count(*) FILTER (WHERE part = 2) >= :most AS more
  FROM (
    (SELECT 1 AS part, l.seq, l.created_at FROM {log} l
     WHERE c.target IS NOT NULL AND l.shard = c.shard AND l.seq > greatest(c.seq, b.floor) AND l.seq <= t.ceil
       AND l.xid >= b.since AND pg_visible_in_snapshot(l.xid, t.snapshot)
       AND l.seq >= g.first_seq AND (g.since IS NULL OR l.created_at >= g.since)
     ORDER BY l.seq LIMIT :most)
    UNION ALL
    (SELECT 1, l.seq, l.created_at FROM unnest(b.late) AS x(xid) CROSS JOIN LATERAL (
       SELECT l.seq, l.created_at FROM {log} l
       WHERE l.xid = x.xid AND l.shard = c.shard AND l.seq > c.seq
         AND l.seq >= g.first_seq AND (g.since IS NULL OR l.created_at >= g.since)
       ORDER BY l.seq LIMIT :most) l
     WHERE c.target IS NOT NULL AND pg_visible_in_snapshot(x.xid, t.snapshot))
    UNION ALL
    (SELECT 2, l.seq, l.created_at FROM {log} l
     WHERE l.shard = c.shard AND l.seq > t.floor AND l.xid >= t.since
       AND l.seq >= g.first_seq AND (g.since IS NULL OR l.created_at >= g.since)
     ORDER BY l.seq LIMIT :most)
    UNION ALL
    (SELECT 2, l.seq, l.created_at FROM unnest(t.late) AS x(xid) CROSS JOIN LATERAL (
       SELECT l.seq, l.created_at FROM {log} l
       WHERE l.xid = x.xid AND l.shard = c.shard
         AND l.seq >= g.first_seq AND (g.since IS NULL OR l.created_at >= g.since)
       ORDER BY l.seq LIMIT :most) l
     WHERE pg_visible_in_snapshot(x.xid, pg_current_snapshot()))) u) l
WHERE g.id = :group
ORDER BY c.shard

-- name: topic.position.unread -> rows
-- Which groups are still to have which of these events.
WITH {places}
SELECT q.id, q.state, e.seq FROM place q JOIN {log} e ON e.shard = q.shard AND e.seq = ANY(:seqs::bigint[]) AND {unread}
UNION
SELECT g.id, g.state, p.seq FROM {group} g JOIN {parked} p ON p.group_id = g.id
WHERE g.topic_id = :topic AND g.state IN ({promised_states}) AND p.seq = ANY(:seqs::bigint[])

-- name: topic.position.held -> rows
-- What is taken and what is parked, and since when.
SELECT {clock}, r.events, r.oldest, p.waiting, p.oldest, p.dead
FROM (SELECT coalesce(sum(r.events - coalesce(cardinality(r.finished), 0)), 0)::bigint AS events,
             min(least(greatest(f.created_at, {first_time}), {last_time})) FILTER (WHERE f.created_at IS NOT NULL) AS oldest
      FROM generate_series(0, :shards - 1) AS n(shard)
      CROSS JOIN LATERAL (SELECT c.low FROM {cursor} c WHERE c.group_id = :group AND c.shard = n.shard
                          ORDER BY c.version DESC LIMIT 1) c
      CROSS JOIN LATERAL (SELECT * FROM {range} r WHERE r.group_id = :group AND r.shard = n.shard AND r.n >= c.low) r
      LEFT JOIN LATERAL (
        SELECT l.created_at FROM {log} l WHERE l.shard = r.shard AND l.seq > r.after AND l.seq <= r.upto
        ORDER BY l.seq LIMIT 1) f ON true) r,
     (SELECT count(*) FILTER (WHERE state <> 'dead') AS waiting,
             min(created_at) FILTER (WHERE state <> 'dead') AS oldest,
             count(*) FILTER (WHERE state = 'dead') AS dead
      FROM {parked} WHERE group_id = :group) p
