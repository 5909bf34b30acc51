-- slot: writable
x AS MATERIALIZED (SELECT pg_current_xact_id() AS xid),
t AS MATERIALIZED (
  SELECT x.xid, t.required, t.audience FROM x, {topic} t
  WHERE t.id = :topic AND t.version = :version
    AND NOT (t.block_writes AND t.semantics = 'pub_sub' AND t.active = 0))

-- slot: batch
-- A batch is stored shard by shard, as it will be read: else each event of a range would lie on another page.
d AS MATERIALIZED (
  SELECT nextval('{log_seq}') AS seq, {clock} AS created_at, o.*
  FROM (SELECT t.xid, u.* FROM t, unnest(:shards::smallint[], {event_arrays})
        WITH ORDINALITY AS u(shard, {event_fields}, ord)
        ORDER BY ord) o)

-- slot: inserted
e AS (
  INSERT INTO {log} (seq, xid, shard, {event_fields}, created_at)
  SELECT seq, xid, shard, {event_fields}, created_at FROM d
  ORDER BY shard, seq)

-- slot: places
-- Where each group that is not cancelled stands, and what it has taken.
place AS MATERIALIZED (
  SELECT g.id, g.state, g.first_seq, g.since, c.shard, c.seq, b.snapshot AS base, k.snapshot AS target
  FROM {group} g JOIN {cursor} c ON c.group_id = g.id
  LEFT JOIN {tick} b ON b.topic_id = g.topic_id AND b.tick = c.base
  LEFT JOIN {tick} k ON k.topic_id = g.topic_id AND k.tick = c.target
  WHERE g.topic_id = :topic AND g.state IN ({promised_states})),
taken AS MATERIALIZED (
  SELECT r.group_id, r.shard, r.after, r.upto, r.finished, r.owner, b.snapshot AS base, k.snapshot AS target
  FROM {group} g JOIN {range} r ON r.group_id = g.id
  JOIN {tick} b ON b.topic_id = g.topic_id AND b.tick = r.base
  JOIN {tick} k ON k.topic_id = g.topic_id AND k.tick = r.target
  WHERE g.topic_id = :topic AND g.state IN ({promised_states}))

-- slot: unread
-- Whether the group at place `q` was still to have event `e`. What it parked it has: that is a copy.
e.seq >= q.first_seq AND (q.since IS NULL OR e.created_at >= q.since) AND (
    (NOT coalesce(pg_visible_in_snapshot(e.xid, q.base), false)
     AND NOT coalesce(e.seq <= q.seq AND pg_visible_in_snapshot(e.xid, q.target), false))
    OR EXISTS (SELECT 1 FROM taken r
               WHERE r.group_id = q.id AND r.shard = e.shard AND e.seq > r.after AND e.seq <= r.upto
                 AND pg_visible_in_snapshot(e.xid, r.target) AND NOT pg_visible_in_snapshot(e.xid, r.base)
                 AND NOT e.seq = ANY(coalesce(r.finished, '{}'))))

-- slot: low
-- Where the slowest group that keeps its claim stands in each shard. What it has taken and not finished is unread.
WITH t AS MATERIALIZED (SELECT * FROM {topic} WHERE id = :topic),
n AS MATERIALIZED (SELECT {clock} AS at),
kept AS MATERIALIZED (
  SELECT id FROM {group} WHERE topic_id = :topic AND state IN ({kept_states})),
low AS MATERIALIZED (
  SELECT p.shard, min(p.base) AS base FROM (
    SELECT c.shard, c.base FROM kept JOIN {cursor} c ON c.group_id = kept.id
    UNION ALL
    SELECT r.shard, r.base FROM kept JOIN {range} r ON r.group_id = kept.id) p
  GROUP BY p.shard)

-- slot: aged
p.created_at < n.at - least(t.retention, t.zero_retention)
    AND p.created_at < n.at - CASE WHEN EXISTS (
          SELECT 1 FROM {promise} r
          WHERE r.topic_id = :topic AND NOT pg_visible_in_snapshot(p.xid, r.since)
            AND (r.until IS NULL OR pg_visible_in_snapshot(p.xid, r.until)))
        THEN t.retention ELSE t.zero_retention END

-- slot: marks_offset

-- slot: closed_offset

-- slot: unmark_offset

-- slot: marks_bitmap
LEFT JOIN {mark} m ON m.seq = p.seq

-- slot: closed_bitmap
AND (m.seq IS NULL OR m.completed_at IS NOT NULL OR m.required = 0)

-- slot: unmark_bitmap
, unmarked AS (DELETE FROM {mark} WHERE seq = ANY(ARRAY(SELECT seq FROM gone)))

-- slot: marks_acks
LEFT JOIN {mark} m ON m.seq = p.seq

-- slot: closed_acks
AND (m.seq IS NULL OR m.completed_at IS NOT NULL OR m.required OPERATOR(pg_catalog.=) '{}')

-- slot: unmark_acks
, unmarked AS (DELETE FROM {mark} WHERE seq = ANY(ARRAY(SELECT seq FROM gone))),
unacked AS (DELETE FROM {ack} WHERE seq = ANY(ARRAY(SELECT seq FROM gone)))
