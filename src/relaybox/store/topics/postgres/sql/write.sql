-- Writing to a log, in the caller's transaction. {writable} begins each statement: it gives the transaction
-- its number before an event draws one (what a tick's `floor` says depends on it), and answers no row when the topic is
-- not as the writer knows it, or blocks writes because nobody is subscribed. So the check is the insert's own.

-- name: topic.write.one -> rows
WITH {writable}
INSERT INTO {log} (seq, xid, shard, {event_fields}, created_at)
SELECT nextval('{log_seq}'), t.xid, :shard, :event_id, :event_type, :aggregate_type, :aggregate_id, :tenant_id,
       :content_type, :payload, :headers, :occurred_at, {clock}
FROM t
RETURNING seq

-- name: topic.write.many -> rows
-- The same for a batch given as arrays, numbered in list order.
WITH {writable}, {batch}, {inserted}
SELECT seq FROM d

-- name: topic.write.many_bitmap -> rows
-- With the marks that say who must have it: the groups of this moment.
WITH {writable}, {batch}, {inserted},
m AS (INSERT INTO {mark} (seq, required, created_at) SELECT d.seq, t.required, d.created_at FROM d, t)
SELECT seq FROM d

-- name: topic.write.many_acks -> rows
WITH {writable}, {batch}, {inserted},
m AS (INSERT INTO {mark} (seq, required, created_at) SELECT d.seq, t.audience, d.created_at FROM d, t)
SELECT seq FROM d

-- name: topic.write.numbers -> rows
-- The numbers for a COPY, drawn after the transaction has its own, and what its marks say. Under row-level security the
-- server refuses a COPY.
WITH {writable}
SELECT ARRAY(SELECT nextval('{log_seq}') FROM generate_series(1, :count)), t.required, t.audience,
       row_security_active('{log}'::regclass)
FROM t

-- name: topic.write.state -> rows
-- The version there is, and whether writes are blocked.
SELECT version, block_writes AND semantics = 'pub_sub' AND active = 0 FROM {topic} WHERE id = :topic

-- name: topic.write.queue -> rows
-- Into a queue tracked by rows, as outbox.write.many does. An insert holds its table before it looks at anything: a move
-- of the queue locks the table, raises the version, and is waited for or seen.
WITH t AS MATERIALIZED (SELECT 1 FROM {topic} WHERE id = :topic AND version = :version),
d AS MATERIALIZED (
  SELECT nextval('{queue_seq}') AS seq, o.*
  FROM (SELECT u.* FROM t, unnest({event_arrays}, :deliver_ats::timestamptz[])
        WITH ORDINALITY AS u({event_fields}, deliver_at, ord)
        ORDER BY ord) o),
e AS (
  INSERT INTO {queue_event} (seq, {event_fields}, deliver_at, created_at)
  SELECT seq, {event_fields}, deliver_at, {clock} FROM d),
p AS (
  INSERT INTO {queue_pending} (seq, due, key_hash, attempts, tenant, since)
  SELECT seq, coalesce(deliver_at, :now, clock_timestamp()), {queue_hash}(coalesce(aggregate_id, event_id)), 0,
         coalesce(tenant_id, ''), CASE WHEN deliver_at IS NULL THEN {clock} END FROM d)
SELECT seq FROM d

-- name: topic.write.queued -> rows
-- Whether such a queue is as the writer knows it, before a COPY. Naming its table holds it, as an insert would.
SELECT 1 FROM {topic}
WHERE id = :topic AND version = :version AND NOT EXISTS (SELECT 1 FROM {queue_event} WHERE false)

-- name: topic.write.stored -> rows
-- Which of these ids are among the newest events: the answer to a commit whose reply was lost. The log has no index of
-- ids, so the caller widens the search step by step.
SELECT l.event_id
FROM {log_seq} s CROSS JOIN generate_series(0, :shards - 1) AS n(shard)
CROSS JOIN LATERAL (
  SELECT event_id FROM {log} WHERE shard = n.shard AND seq > s.last_value - :newest AND seq <= s.last_value - :skip) l
WHERE l.event_id = ANY(:event_ids::text[])

-- name: topic.write.notify -> rows
-- Only when somebody is there to hear it.
SELECT pg_notify('{channel}', '')
FROM (SELECT 1 FROM {member} WHERE expires_at >= {clock} LIMIT 1) AS listener
