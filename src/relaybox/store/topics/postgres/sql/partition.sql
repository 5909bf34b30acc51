-- A log's partitions by day or month. Compiled for one topic; {log_part} is one partition, {log_from} and {log_to} its
-- bounds.

-- name: topic.partition.list -> rows
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass('{log}') AND c.relname LIKE '{log_name}\_p%'::text ORDER BY c.relname

-- name: topic.partition.patience -> rows
-- How long this transaction may wait for a lock, and a statement of it run: inserts queue behind it.
SELECT set_config('lock_timeout', :patience, true), set_config('statement_timeout', :patience, true)

-- name: topic.partition.create -> count
CREATE TABLE {log_part} (LIKE {log} INCLUDING DEFAULTS INCLUDING CONSTRAINTS) {log_spread}

-- name: topic.partition.table -> count
-- One of those that a log which is spread has in each partition. Whole shards, as a log is read.
CREATE TABLE {log_table} PARTITION OF {log_part} FOR VALUES FROM ({log_from}) TO ({log_to})

-- name: topic.partition.attach -> count
-- Not CREATE TABLE … PARTITION OF: that locks the log against its writers, this only the partition for the rest.
ALTER TABLE {log} ATTACH PARTITION {log_part} FOR VALUES FROM ('{log_from}') TO ('{log_to}')

-- name: topic.partition.taken -> rows
-- Whether the rest has events of that time: then the partition would be refused.
SELECT EXISTS (SELECT 1 FROM {log_rest} WHERE created_at >= '{log_from}' AND created_at < '{log_to}')

-- name: topic.partition.freeze -> count
-- No late writer can add to it from here on; readers go on.
LOCK TABLE ONLY {log_part} IN SHARE MODE

-- name: topic.partition.verdict -> rows
-- Whether a partition may go: `aged`, past the retention; `forced`, past the longest one; `unread`, some group that keeps
-- its claim has not passed all of it. Of an event that no group was ever to have the retention is `zero_retention`. Where
-- the first and the last transaction do not show that all events are of one kind, the longer of both.
{low},
edge AS MATERIALIZED (
  SELECT (SELECT p.xid FROM {log_part} p ORDER BY p.xid LIMIT 1) AS first,
         (SELECT p.xid FROM {log_part} p ORDER BY p.xid DESC LIMIT 1) AS last),
promised AS MATERIALIZED (
  SELECT coalesce(bool_or(f.found), false) AS partly,
         coalesce(bool_or(e.first >= pg_snapshot_xmax(r.since)
                          AND (r.until IS NULL OR e.last < pg_snapshot_xmin(r.until))), false) AS whole
  FROM edge e CROSS JOIN {promise} r CROSS JOIN LATERAL (
    SELECT EXISTS (
      SELECT 1 FROM {log_part} p
      WHERE p.xid >= pg_snapshot_xmin(r.since) AND (r.until IS NULL OR p.xid < pg_snapshot_xmax(r.until))
        AND NOT pg_visible_in_snapshot(p.xid, r.since)
        AND (r.until IS NULL OR pg_visible_in_snapshot(p.xid, r.until))) AS found) f
  WHERE r.topic_id = :topic)
SELECT '{log_to}'::timestamptz <= n.at - CASE
         WHEN promised.whole THEN t.retention
         WHEN promised.partly THEN greatest(t.retention, t.zero_retention)
         ELSE t.zero_retention END AS aged,
       '{log_to}'::timestamptz <= n.at - t.max_retention AS forced,
       EXISTS (
         SELECT 1 FROM low LEFT JOIN {tick} b ON b.topic_id = :topic AND b.tick = low.base
         WHERE b.tick IS NULL OR EXISTS (
           SELECT 1 FROM {log_part} p
           WHERE p.xid >= pg_snapshot_xmin(b.snapshot) AND p.shard = low.shard
             AND NOT pg_visible_in_snapshot(p.xid, b.snapshot))) AS unread
FROM t, n, promised

-- name: topic.partition.lost -> rows
-- What groups lose with a partition: those that are dead, and if it is `forced`, all.
WITH {places}
SELECT q.id, count(*) FROM place q JOIN {log_part} e ON e.shard = q.shard
WHERE (:forced OR q.state NOT IN ({kept_states})) AND {unread}
GROUP BY q.id ORDER BY q.id

-- name: topic.partition.incomplete -> rows
SELECT EXISTS (
  SELECT 1 FROM {mark} m
  WHERE m.completed_at IS NULL AND m.required OPERATOR(pg_catalog.<>) {log_nobody}
    AND m.created_at >= '{log_from}'::timestamptz - interval '1 second' AND m.created_at < '{log_to}')

-- name: topic.partition.drop -> count
DROP TABLE {log_part}

-- name: topic.partition.unmark -> rows
-- The marks of a partition's events go before it, a page at a time.
WITH gone AS MATERIALIZED (
  SELECT seq FROM {log_part} WHERE shard = :shard AND seq > :after ORDER BY seq LIMIT :limit)
{log_unmark}
SELECT coalesce(max(seq), 0), count(*) FROM gone
