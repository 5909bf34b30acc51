-- What operators see of a group that reads a log. Parked events are open or dead; what the log has and the group has not
-- passed is open too, and what it has passed is done. A log has no index of ids: they are looked for where the search is.

-- slot: asked_for
(:ids::text[] IS NULL OR e.event_id = ANY(:ids::text[]))
  AND (:type::text IS NULL OR e.event_type = :type)
  AND (:aggregate_type::text IS NULL OR coalesce(e.aggregate_type, '__GLOBAL__') = :aggregate_type)
  AND (:key::text IS NULL OR e.aggregate_id = :key)
  AND (:tenant::text IS NULL OR e.tenant_id = :tenant)
  AND (:data_key::text IS NULL OR strpos(e.headers, :data_key) > 0)
  AND e.seq > :after AND e.seq <= :upto

-- slot: created_within
(:since::timestamptz IS NULL OR e.created_at >= :since) AND (:until::timestamptz IS NULL OR e.created_at < :until)

-- slot: shown
-- Payloads as far as :room goes, and one in any case. What a log has no column for says where the page ends.
e.seq, e.event_id, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant_id, e.content_type,
       CASE WHEN {in_room} THEN e.payload END, e.headers,
       least(greatest(e.occurred_at, {first_time}), {last_time}), CASE WHEN NOT {in_room} THEN 1 END,
       least(greatest(e.created_at, {first_time}), {last_time})

-- slot: in_room
(sum(coalesce(octet_length(e.payload), 0)) OVER (ORDER BY e.seq) - coalesce(octet_length(e.payload), 0) <= :room::bigint)

-- slot: from_parked
FROM {parked} e
WHERE e.group_id = :group AND (e.state = 'dead') = :dead::boolean AND {asked_for}
  AND (:error::text IS NULL OR strpos(e.last_error, :error) > 0)
  AND (:since::timestamptz IS NULL OR coalesce(e.dead_at, e.created_at) >= :since)
  AND (:until::timestamptz IS NULL OR coalesce(e.dead_at, e.created_at) < :until)

-- slot: log_waiting
-- In each shard from the first on that may be unread: what was committed late has numbers below the others.
FROM (
  SELECT p.shard, min(least(b.floor, (SELECT min(l.seq) - 1 FROM {log} l WHERE l.shard = p.shard AND l.xid = ANY(b.late))))
         AS low
  FROM (SELECT shard, base FROM {cursor} WHERE group_id = :group
        UNION SELECT shard, base FROM {range} WHERE group_id = :group) p
  JOIN {tick} b ON b.topic_id = :topic AND b.tick = p.base
  GROUP BY p.shard) f
JOIN place q ON q.id = :group AND q.shard = f.shard
CROSS JOIN LATERAL (
  SELECT e.*, EXISTS (SELECT 1 FROM taken r WHERE r.group_id = :group AND r.shard = e.shard AND e.seq > r.after
                        AND e.seq <= r.upto AND r.owner <> 0 AND pg_visible_in_snapshot(e.xid, r.target)
                        AND NOT pg_visible_in_snapshot(e.xid, r.base)) AS claimed
  FROM {log} e
  WHERE e.shard = f.shard AND e.seq > f.low AND ({unread}) AND :error::text IS NULL AND {asked_for} AND {created_within}
    AND NOT EXISTS (SELECT 1 FROM {parked} p WHERE p.group_id = :group AND p.seq = e.seq)
  ORDER BY e.seq LIMIT :limit::bigint) e

-- slot: log_done
FROM place q JOIN {group} g ON g.id = q.id LEFT JOIN {tick} b ON b.topic_id = :topic AND b.tick = g.start_tick
CROSS JOIN LATERAL (
  SELECT e.* FROM {log} e
  WHERE e.shard = q.shard AND e.seq >= q.first_seq AND (q.since IS NULL OR e.created_at >= q.since)
    AND NOT coalesce(pg_visible_in_snapshot(e.xid, b.snapshot), false) AND NOT ({unread})
    AND :error::text IS NULL AND {asked_for} AND {created_within}
    AND NOT EXISTS (SELECT 1 FROM {parked} p WHERE p.group_id = :group AND p.seq = e.seq)
  ORDER BY e.seq LIMIT :limit::bigint) e
WHERE q.id = :group

-- name: topic.events.newest -> rows
SELECT CASE WHEN is_called THEN last_value ELSE 0 END, {clock} FROM {log_seq}

-- name: topic.events.parked -> rows
-- One that a member has is due when its lease ends, which is no time for people.
SELECT {shown}, e.attempts, e.last_error, CASE WHEN e.state = 'retry' AND e.token IS NULL THEN e.due END, e.dead_at,
       CASE WHEN e.token IS NULL THEN e.state ELSE 'claimed' END
{from_parked} ORDER BY e.seq LIMIT :limit

-- name: topic.events.parked_count -> rows
SELECT count(*) {from_parked}

-- name: topic.events.parked_numbers -> rows
SELECT e.seq {from_parked} ORDER BY e.seq LIMIT :limit

-- name: topic.events.waiting -> rows
WITH {places}
SELECT {shown}, 0, NULL, NULL, NULL, CASE WHEN e.claimed THEN 'claimed' ELSE 'waiting' END
{log_waiting} ORDER BY e.seq LIMIT :limit

-- name: topic.events.waiting_count -> rows
WITH {places} SELECT count(*) {log_waiting}

-- name: topic.events.done -> rows
WITH {places}
SELECT {shown}, NULL, NULL, NULL, NULL, 'done' {log_done} ORDER BY e.seq LIMIT :limit

-- name: topic.events.done_count -> rows
WITH {places} SELECT count(*) {log_done}

-- name: topic.events.replay -> rows
-- Tried again with fresh attempts; the old error stays readable until the next outcome.
UPDATE {parked} p SET state = 'retry', attempts = 0, due = {clock}, dead_at = NULL
WHERE p.group_id = :group AND p.seq = ANY(:seqs::bigint[]) AND p.state = 'dead' AND p.dead_at <= :cutoff
RETURNING p.seq, p.key_hash

-- name: topic.events.queue -> count
-- Those of an ordered group that are not the head of their queue: claims shall not have to look past them.
UPDATE {parked} p SET state = 'held'
WHERE p.group_id = :group AND p.seq = ANY(:seqs::bigint[]) AND p.state = 'retry' AND p.token IS NULL AND EXISTS (
  SELECT 1 FROM {parked} e
  WHERE e.group_id = p.group_id AND e.key_hash = p.key_hash AND e.seq < p.seq AND e.state <> 'dead')

-- name: topic.events.discard -> rows
-- A member that has one will be told that its claim is lost.
DELETE FROM {parked} p
WHERE p.group_id = :group AND p.seq = ANY(:seqs::bigint[]) AND (p.state = 'dead') = :dead::boolean
RETURNING p.seq, p.key_hash

-- slot: first_of_key
-- The first of a key's queue, which failed and keeps the others waiting.
p.group_id = :group AND p.aggregate_id IS NOT NULL AND p.key_hash >= 0
  AND ((p.state = 'retry' AND p.last_error IS NOT NULL) OR (p.state = 'dead' AND g.on_exhausted = 'park'))
  AND NOT EXISTS (
    SELECT 1 FROM {parked} e WHERE e.group_id = p.group_id AND e.key_hash = p.key_hash AND e.seq < p.seq
      AND (e.state <> 'dead' OR g.on_exhausted = 'park'))

-- name: topic.events.blocked -> rows
SELECT p.aggregate_id, p.event_id, p.state, p.parked_at, p.attempts, p.last_error
FROM {parked} p JOIN {group} g ON g.id = p.group_id AND g.ordered
WHERE {first_of_key} ORDER BY p.parked_at, p.seq LIMIT :limit

-- name: topic.events.release -> rows
-- The head leaves the queue of its key for one of its own: no key's hash is negative.
UPDATE {parked} p SET key_hash = -p.seq FROM {group} g
WHERE g.id = p.group_id AND g.ordered AND p.key_hash = :key_hash AND {first_of_key}
RETURNING p.seq
