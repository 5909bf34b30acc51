-- name: topic.member.replace -> rows
-- A member of this name whose time has run out: it is back, under a new id, and what the old one had taken is free.
DELETE FROM {member} WHERE group_id = :group AND name = :name AND expires_at < {clock}
RETURNING processed, failed, filtered, busy_ms

-- name: topic.member.join -> rows
-- By chance, not by counting: after a fail-over that forgot a member the next one would get its number, and the two would
-- take each other's ranges for their own.
INSERT INTO {member} (id, group_id, name, started_at, seen_at, expires_at) OVERRIDING SYSTEM VALUE
SELECT 1 + floor(random() * 2147483647::float8)::integer, :group::integer, :name::text, n.at, n.at, n.at + {ttl}
FROM (SELECT {clock} AS at) n
ON CONFLICT (id) DO NOTHING
RETURNING id

-- name: topic.member.joined -> count
-- A sign of life too; after a silence for which it could have been declared dead the group has all its time again.
UPDATE {group} g
SET joins = g.joins + 1,
    heartbeat_at = CASE WHEN g.heartbeat_at <= n.at - g.heartbeat_interval THEN n.at ELSE g.heartbeat_at END,
    alive_since = CASE WHEN g.heartbeat_at < n.at - g.heartbeat_timeout THEN n.at ELSE g.alive_since END
FROM (SELECT {clock} AS at) n
WHERE g.id = :group

-- name: topic.member.beat -> rows
-- Rows are locked by id, so that two batches cannot wait for one another. A group is stamped once per interval.
WITH n AS MATERIALIZED (SELECT {clock} AS at),
mine AS MATERIALIZED (
  SELECT m.id FROM {member} m WHERE m.id = ANY(:members::integer[]) ORDER BY m.id FOR NO KEY UPDATE),
beat AS (
  UPDATE {member} m
  SET seen_at = n.at, expires_at = n.at + {ttl}, unhealthy = false,
      processed = m.processed + b.processed, failed = m.failed + b.failed, filtered = m.filtered + b.filtered,
      busy_ms = m.busy_ms + b.busy_ms
  FROM mine, n, unnest(:members::integer[], :processed::bigint[], :failed::bigint[], :filtered::bigint[],
                       :busy_ms::bigint[]) AS b(id, processed, failed, filtered, busy_ms)
  WHERE m.id = mine.id AND b.id = mine.id
  RETURNING m.id, m.group_id),
quiet AS MATERIALIZED (
  SELECT g.id FROM {group} g, n
  WHERE g.id IN (SELECT group_id FROM beat) AND g.state IN ('active', 'paused')
    AND g.heartbeat_at <= n.at - g.heartbeat_interval
  ORDER BY g.id FOR NO KEY UPDATE OF g SKIP LOCKED),
stamped AS (
  UPDATE {group} g
  SET heartbeat_at = n.at,
      alive_since = CASE WHEN g.heartbeat_at < n.at - g.heartbeat_timeout THEN n.at ELSE g.alive_since END
  FROM quiet, n WHERE g.id = quiet.id)
SELECT beat.id, g.state FROM beat JOIN {group} g ON g.id = beat.group_id

-- name: topic.member.leave -> rows
DELETE FROM {member} WHERE id = :member RETURNING group_id, processed, failed, filtered, busy_ms

-- name: topic.member.left -> count
-- The group keeps what its members have done.
UPDATE {group}
SET processed = processed + :processed, failed = failed + :failed, filtered = filtered + :filtered,
    busy_ms = busy_ms + :busy_ms
WHERE id = :group

-- name: topic.member.list -> rows
SELECT m.id, m.group_id, t.name, g.name, m.name, m.started_at, m.seen_at, n.at - m.seen_at, m.expires_at >= n.at,
       m.processed, m.failed, m.filtered, m.busy_ms
FROM {member} m JOIN {group} g ON g.id = m.group_id JOIN {topic} t ON t.id = g.topic_id, (SELECT {clock} AS at) n
WHERE m.group_id = :group
ORDER BY m.started_at, m.id

-- name: topic.member.unhealthy -> rows
-- Each is named once; a beat makes it healthy again.
WITH n AS MATERIALIZED (SELECT {clock} AS at),
found AS MATERIALIZED (
  SELECT m.id FROM {member} m, n WHERE NOT m.unhealthy AND m.seen_at < n.at - :window::interval
  ORDER BY m.id FOR NO KEY UPDATE OF m SKIP LOCKED),
told AS (
  UPDATE {member} m SET unhealthy = true FROM found WHERE m.id = found.id RETURNING m.*)
SELECT m.id, m.group_id, t.name, g.name, m.name, m.started_at, m.seen_at, n.at - m.seen_at, m.expires_at >= n.at,
       m.processed, m.failed, m.filtered, m.busy_ms
FROM told m JOIN {group} g ON g.id = m.group_id JOIN {topic} t ON t.id = g.topic_id, n
ORDER BY m.id

-- name: topic.member.silent -> rows
SELECT m.id, m.group_id, t.name, g.name, m.name, m.started_at, m.seen_at, n.at - m.seen_at, m.expires_at >= n.at,
       m.processed, m.failed, m.filtered, m.busy_ms
FROM {member} m JOIN {group} g ON g.id = m.group_id JOIN {topic} t ON t.id = g.topic_id, (SELECT {clock} AS at) n
WHERE m.seen_at < n.at - :silence::interval AND m.expires_at < n.at
ORDER BY m.id FOR UPDATE OF m SKIP LOCKED

-- name: topic.group.to_check -> rows
-- A window is a third of the timeout, but no shorter than the interval of heartbeats.
SELECT DISTINCT g.topic_id FROM {group} g, (SELECT {clock} AS at) n
WHERE g.state = 'active'
  AND (g.heartbeat_at < n.at - g.heartbeat_timeout
       OR g.checked_at <= n.at - greatest(g.heartbeat_timeout / 3::float8, g.heartbeat_interval))
ORDER BY g.topic_id

-- name: topic.group.windows -> rows
-- Of each active group: what has happened since the end of its last window. `pending`: there is work for it.
SELECT g.id, n.at - g.heartbeat_at > g.heartbeat_timeout AS timed_out,
       n.at - g.checked_at >= greatest(g.heartbeat_timeout / 3::float8, g.heartbeat_interval) AS window_over,
       g.heartbeat_at <= g.checked_at AS missed, g.joins > g.checked_joins AS restarted,
       m.done + g.processed + g.failed + g.filtered AS done, g.checked_done, n.at - g.heartbeat_at AS silent, g.joins,
       EXISTS (SELECT 1 FROM {range} r WHERE r.group_id = g.id)
       OR EXISTS (SELECT 1 FROM {cursor} c JOIN {head} h ON h.topic_id = g.topic_id
                  WHERE c.group_id = g.id AND (c.target IS NOT NULL OR c.base < h.tick))
       OR EXISTS (SELECT 1 FROM {parked} p
                  WHERE p.group_id = g.id AND p.state = 'retry' AND (p.due <= n.at OR p.token IS NOT NULL)) AS pending
FROM {group} g,
     LATERAL (SELECT coalesce(sum(m.processed + m.failed + m.filtered), 0)::bigint AS done
              FROM {member} m WHERE m.group_id = g.id) m, (SELECT {clock} AS at) n
WHERE g.topic_id = :topic AND g.state = 'active'
ORDER BY g.id FOR NO KEY UPDATE OF g

-- name: topic.group.window_over -> count
UPDATE {group}
SET failures = :failures, checked_at = {clock}, checked_joins = :joins, checked_done = :done
WHERE id = :id

-- name: topic.group.near_timeout -> rows
SELECT g.name, t.name, n.at - g.heartbeat_at, g.heartbeat_timeout
FROM {group} g JOIN {topic} t ON t.id = g.topic_id, (SELECT {clock} AS at) n
WHERE g.state = 'active' AND n.at - g.heartbeat_at >= g.heartbeat_timeout * 0.8::float8
ORDER BY 2, 1

-- name: topic.group.totals -> rows
-- What a group has done and holds. The rate is that of the members that are running.
SELECT n.at, n.at - g.heartbeat_at, m.live, g.processed + m.processed, g.failed + m.failed, g.filtered + m.filtered,
       g.busy_ms + m.busy_ms, m.per_second,
       (SELECT count(*) FROM {range} r JOIN {member} o ON o.id = r.owner AND o.expires_at > n.at
        WHERE r.group_id = g.id AND r.until > n.at)
       + (SELECT count(*) FROM {parked} p JOIN {member} o ON o.id = p.owner AND o.expires_at > n.at
          WHERE p.group_id = g.id AND p.token IS NOT NULL AND p.until > n.at)
FROM {group} g, (SELECT {clock} AS at) n, LATERAL (
       SELECT count(*) FILTER (WHERE m.expires_at > n.at) AS live, coalesce(sum(m.processed), 0)::bigint AS processed,
              coalesce(sum(m.failed), 0)::bigint AS failed, coalesce(sum(m.filtered), 0)::bigint AS filtered,
              coalesce(sum(m.busy_ms), 0)::bigint AS busy_ms,
              coalesce(sum(m.processed::numeric / greatest(extract(epoch FROM m.seen_at - m.started_at), 1))
                       FILTER (WHERE m.expires_at > n.at), 0)::float8 AS per_second
       FROM {member} m WHERE m.group_id = g.id) m
WHERE g.id = :group

-- name: topic.member.time_ago -> rows
SELECT {clock} - :age::interval
