-- Moving a queue between rows and a log. Writers are told in a transaction that waits for those under way (and no longer
-- than the lock timeout at a time), so afterwards the old table only shrinks. Numbers stay: what is moved has lower ones
-- than whatever is written meanwhile.

-- name: topic.queue.lock_rows -> count
LOCK TABLE {queue_event} IN ACCESS EXCLUSIVE MODE

-- name: topic.queue.lock_log -> count
LOCK TABLE {log} IN ACCESS EXCLUSIVE MODE

-- name: topic.queue.close_rows -> count
-- A REPEATABLE READ transaction from before sees the old version for life: it must fail, not write under numbers that the
-- log has given to others.
ALTER TABLE {queue_event} ADD CONSTRAINT "{queue_event_name}_closed" CHECK (false) NOT VALID

-- name: topic.queue.close_log -> count
-- The same: nobody looks into that table.
ALTER TABLE {log} ADD CONSTRAINT "{log_name}_closed" CHECK (false) NOT VALID

-- name: topic.queue.numbers_to_log -> rows
SELECT setval('{log_seq}', greatest(q.last_value, l.last_value)) FROM {queue_seq} q, {log_seq} l

-- name: topic.queue.numbers_to_rows -> rows
SELECT setval('{queue_seq}', greatest(q.last_value, l.last_value)) FROM {queue_seq} q, {log_seq} l

-- name: topic.queue.to_log -> rows
-- The newest that wait, so that what a consumer of the rows finds is always older than what has gone. What is due later
-- or has been tried is parked with its due time and attempts. Claimed ones are left to the members that have them.
WITH n AS MATERIALIZED (SELECT {clock} AS at),
p AS MATERIALIZED (SELECT * FROM {queue_pending} ORDER BY seq DESC LIMIT :limit FOR UPDATE SKIP LOCKED),
freed AS (DELETE FROM {queue_pending} q USING p WHERE q.seq = p.seq),
e AS (
  DELETE FROM {queue_event} e USING p WHERE e.seq = p.seq
  RETURNING e.*, p.due <= (SELECT at FROM n) OR p.since IS NOT NULL AS now, p.due, p.attempts, p.last_error, p.key_hash),
l AS (
  INSERT INTO {log} (seq, shard, {event_fields}, created_at)
  SELECT seq, (key_hash >> 32) % :shards::bigint, {event_fields}, created_at
  FROM e WHERE e.attempts = 0 AND e.now),
k AS (
  INSERT INTO {parked} (group_id, seq, shard, key_hash, state, attempts, due, last_error, parked_at,
                        {event_fields}, created_at)
  SELECT :group, seq, (key_hash >> 32) % :shards::bigint, key_hash, 'retry', attempts, due, last_error, n.at,
         {event_fields}, created_at
  FROM e, n WHERE NOT (e.attempts = 0 AND e.now))
SELECT count(*) FROM p

-- name: topic.queue.dead_to_log -> rows
WITH n AS MATERIALIZED (SELECT {clock} AS at),
d AS MATERIALIZED (SELECT * FROM {queue_dead} ORDER BY seq LIMIT :limit FOR UPDATE SKIP LOCKED),
freed AS (DELETE FROM {queue_dead} q USING d WHERE q.seq = d.seq),
k AS (
  INSERT INTO {parked} (group_id, seq, shard, key_hash, state, attempts, due, last_error, parked_at, dead_at,
                        {event_fields}, created_at)
  SELECT :group, e.seq, (h.hash >> 32) % :shards::bigint, h.hash, 'dead', d.attempts, n.at, d.last_error, n.at, d.dead_at,
         e.event_id, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant_id, e.content_type, e.payload, e.headers,
         e.occurred_at, e.created_at
  FROM n, d JOIN {queue_event} e ON e.seq = d.seq
  CROSS JOIN LATERAL (SELECT {queue_hash}(coalesce(e.aggregate_id, e.event_id)) AS hash) h)
SELECT count(*) FROM d

-- name: topic.queue.left -> rows
-- What the rows still have: waiting, claimed, dead.
SELECT (SELECT count(*) FROM (SELECT 1 FROM {queue_pending} LIMIT 1) p),
       (SELECT count(*) FROM {queue_claim}), (SELECT count(*) FROM (SELECT 1 FROM {queue_dead} LIMIT 1) d)

-- name: topic.queue.fence -> rows
-- What members of a log's group hold and have not finished in time is not theirs any more. How many still have time.
WITH n AS MATERIALIZED (SELECT {clock} AS at),
fenced AS (
  UPDATE {range} SET token = (random() * 9e18::float8)::bigint, owner = 0, until = '-infinity'
  FROM n WHERE group_id = :group AND until <= n.at AND owner <> 0),
freed AS (
  UPDATE {parked} SET token = NULL, owner = NULL, until = NULL
  FROM n WHERE group_id = :group AND until <= n.at)
SELECT (SELECT count(*) FROM {range}, n WHERE group_id = :group AND until > n.at)
     + (SELECT count(*) FROM {parked}, n WHERE group_id = :group AND until > n.at)

-- name: topic.queue.to_rows -> rows
-- Of the events with these numbers, those the group has not finished: beyond its cursor, or in a range nobody finished.
WITH c AS MATERIALIZED (
  SELECT c.shard, c.seq, b.snapshot AS base, t.snapshot AS target, g.first_seq, g.since
  FROM {group} g JOIN {cursor} c ON c.group_id = g.id
  CROSS JOIN LATERAL (SELECT snapshot FROM {tick} WHERE topic_id = g.topic_id AND tick = c.base LIMIT 1) b
  LEFT JOIN LATERAL (SELECT snapshot FROM {tick} WHERE topic_id = g.topic_id AND tick = c.target LIMIT 1) t ON true
  WHERE g.id = :group),
e AS MATERIALIZED (
  SELECT l.* FROM {log} l JOIN c ON c.shard = l.shard
  WHERE l.shard = ANY(:shards::smallint[]) AND l.seq > :after AND l.seq <= :upto
    AND (NOT (l.seq < c.first_seq OR coalesce(l.created_at < c.since, false)
              OR pg_visible_in_snapshot(l.xid, c.base)
              OR coalesce(l.seq <= c.seq AND pg_visible_in_snapshot(l.xid, c.target), false))
         OR EXISTS (SELECT 1 FROM {range} r
                    JOIN {tick} rb ON rb.topic_id = :topic AND rb.tick = r.base
                    JOIN {tick} rt ON rt.topic_id = :topic AND rt.tick = r.target
                    WHERE r.group_id = :group AND r.shard = l.shard AND l.seq > r.after AND l.seq <= r.upto
                      AND pg_visible_in_snapshot(l.xid, rt.snapshot) AND NOT pg_visible_in_snapshot(l.xid, rb.snapshot)
                      AND NOT l.seq = ANY(coalesce(r.finished, '{}'))))),
i AS (
  INSERT INTO {queue_event} (seq, {event_fields}, created_at)
  SELECT seq, {event_fields}, created_at FROM e),
p AS (
  INSERT INTO {queue_pending} (seq, due, key_hash, attempts, tenant, since)
  SELECT seq, {clock}, {queue_hash}(coalesce(aggregate_id, event_id)), 0, coalesce(tenant_id, ''), {clock} FROM e)
SELECT count(*) FROM e

-- name: topic.queue.parked_to_rows -> rows
WITH k AS (
  DELETE FROM {parked} WHERE (group_id, seq) IN (
    SELECT group_id, seq FROM {parked} WHERE group_id = :group ORDER BY seq LIMIT :limit FOR UPDATE)
  RETURNING *),
i AS (
  INSERT INTO {queue_event} (seq, {event_fields}, created_at)
  SELECT seq, {event_fields}, created_at FROM k),
p AS (
  INSERT INTO {queue_pending} (seq, due, key_hash, attempts, tenant, last_error)
  SELECT seq, due, key_hash, attempts, coalesce(tenant_id, ''), last_error FROM k WHERE state <> 'dead'),
d AS (
  INSERT INTO {queue_dead} (seq, attempts, last_error, dead_at)
  SELECT seq, attempts, last_error, coalesce(dead_at, parked_at) FROM k WHERE state = 'dead')
SELECT count(*) FROM k

-- name: topic.queue.no_ticks -> count
WITH h AS (DELETE FROM {head} WHERE topic_id = :topic)
DELETE FROM {tick} WHERE topic_id = :topic
