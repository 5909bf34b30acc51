-- Events outside the log's order. In ordered groups those of a key are a queue: its head is `retry` (or `dead`, if the
-- group parks dead keys), the others are `held`. Who adds to a queue or takes from it holds `topic.parked.lock`, so that
-- the head is never held behind nobody.

-- name: topic.parked.lock -> rows
SELECT 1 FROM {latch} WHERE group_id = :group FOR UPDATE

-- name: topic.parked.park -> count
INSERT INTO {parked} (group_id, seq, shard, key_hash, state, attempts, due, last_error, parked_at, dead_at,
                      {event_fields}, created_at)
SELECT :group, u.seq, u.shard, u.key_hash, u.state, u.attempts, n.at + make_interval(secs => u.delay), u.error, n.at,
       CASE WHEN u.state = 'dead' THEN n.at END, u.event_id, u.event_type, u.aggregate_type, u.aggregate_id,
       u.tenant_id, u.content_type, u.payload, u.headers, u.occurred_at, u.created_at
FROM (SELECT {clock} AS at) n,
     unnest(:seqs::bigint[], :shards::smallint[], :key_hashes::bigint[], :states::text[], :attempts::integer[],
            :delays::float8[], :errors::text[], {event_arrays}, :created_ats::timestamptz[])
     AS u(seq, shard, key_hash, state, attempts, delay, error, {event_fields}, created_at)
ON CONFLICT (group_id, seq) DO UPDATE
SET state = EXCLUDED.state, attempts = EXCLUDED.attempts, due = EXCLUDED.due, last_error = EXCLUDED.last_error,
    parked_at = EXCLUDED.parked_at, dead_at = EXCLUDED.dead_at, token = NULL, owner = NULL, until = NULL

-- name: topic.parked.promote -> count
-- The head of each of these queues may be tried. Whether the dead hold theirs is asked here: the group's options may have
-- changed since a member read them.
UPDATE {parked} p SET state = 'retry', due = {clock}
FROM unnest(:keys::bigint[]) AS k(key_hash)
CROSS JOIN LATERAL (
  SELECT h.seq, h.state FROM {parked} h
  WHERE h.group_id = :group AND h.key_hash = k.key_hash AND (h.state <> 'dead' OR (SELECT g.on_exhausted = 'park' FROM {group} g WHERE g.id = :group))
  ORDER BY h.seq LIMIT 1) h
WHERE p.group_id = :group AND p.seq = h.seq AND h.state = 'held'

-- name: topic.parked.free -> count
-- The same for all queues of a group, when its dead have ceased to hold theirs.
UPDATE {parked} p SET state = 'retry', due = clock_timestamp()
WHERE p.group_id = :group AND p.state = 'held' AND NOT EXISTS (
  SELECT 1 FROM {parked} e
  WHERE e.group_id = p.group_id AND e.key_hash = p.key_hash AND e.seq < p.seq AND e.state <> 'dead')

-- name: topic.parked.claim -> rows
-- Due ones, and those of members that are gone. Of an ordered group only the heads. A claimed one is due when its lease
-- ends. Many groups have nothing parked: that is one look at an index. No more than :room bytes of payloads, or one.
WITH n AS MATERIALIZED (SELECT {clock} AS at),
f AS MATERIALIZED (
  SELECT p.group_id, p.seq, d.due, octet_length(p.payload) AS size FROM n
  CROSS JOIN LATERAL (
    (SELECT d.seq, d.token, d.due FROM {parked} d
     WHERE d.group_id = :group AND d.state = 'retry' AND d.due <= n.at ORDER BY d.due LIMIT 10 * :limit + 100)
    UNION ALL
    (SELECT d.seq, d.token, d.due FROM {parked} d
     WHERE d.group_id = :group AND d.token IS NOT NULL AND d.due > n.at
       AND NOT EXISTS (SELECT 1 FROM {member} m WHERE m.id = d.owner AND m.expires_at > n.at))) d
  JOIN {parked} p ON p.group_id = :group AND p.seq = d.seq
  WHERE p.state = 'retry' AND (p.due <= n.at OR p.token = d.token)
    AND NOT (:ordered AND EXISTS (
      SELECT 1 FROM {parked} e WHERE e.group_id = p.group_id AND e.key_hash = p.key_hash AND e.seq < p.seq
        AND (e.state <> 'dead' OR (SELECT g.on_exhausted = 'park' FROM {group} g WHERE g.id = :group))))
    AND EXISTS (SELECT 1 FROM {group} g WHERE g.id = :group AND g.state = 'active')
    AND EXISTS (SELECT 1 FROM {member} m WHERE m.id = :member AND m.group_id = :group AND m.expires_at > n.at)
  ORDER BY d.due LIMIT :limit
  FOR UPDATE OF p SKIP LOCKED)
UPDATE {parked} p SET token = :token, owner = :member, attempts = p.attempts + 1,
       until = n.at + {lease_time}, due = n.at + {lease_time}
FROM (SELECT seq, group_id, sum(size) OVER (ORDER BY due, seq) - size AS before FROM f) f, n
WHERE p.group_id = f.group_id AND p.seq = f.seq AND f.before < :room
RETURNING p.seq, p.event_id, p.event_type, p.aggregate_type, p.aggregate_id, p.tenant_id, p.content_type, p.payload,
          p.headers, p.occurred_at, NULL::timestamptz, p.created_at, p.attempts, p.key_hash

-- name: topic.parked.next -> rows
-- When the next one is due. One that has a lease counts until then: its member may be gone.
SELECT p.due - {clock} FROM {parked} p
WHERE p.group_id = :group AND p.state = 'retry' ORDER BY p.due LIMIT 1

-- name: topic.parked.done -> rows
DELETE FROM {parked} p USING unnest(:seqs::bigint[], :tokens::bigint[]) AS u(seq, token)
WHERE p.group_id = :group AND p.seq = u.seq AND p.token = u.token
RETURNING p.seq, p.key_hash

-- name: topic.parked.retry -> rows
UPDATE {parked} p SET due = {clock} + make_interval(secs => u.delay), last_error = u.error,
       attempts = p.attempts - CASE WHEN u.counted THEN 0 ELSE 1 END, token = NULL, owner = NULL, until = NULL
FROM unnest(:seqs::bigint[], :tokens::bigint[], :delays::float8[], :errors::text[], :counted::boolean[])
     AS u(seq, token, delay, error, counted)
WHERE p.group_id = :group AND p.seq = u.seq AND p.token = u.token
RETURNING p.seq

-- name: topic.parked.die -> rows
UPDATE {parked} p SET state = 'dead', dead_at = {clock}, last_error = u.error, token = NULL, owner = NULL, until = NULL
FROM unnest(:seqs::bigint[], :tokens::bigint[], :errors::text[]) AS u(seq, token, error)
WHERE p.group_id = :group AND p.seq = u.seq AND p.token = u.token
RETURNING p.seq, p.key_hash
