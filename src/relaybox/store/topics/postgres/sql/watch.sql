-- What somebody should look at. Each query answers with what is the case now; {alert} knows what was.

-- name: topic.watch.empty -> rows
SELECT name, block_writes FROM {topic} WHERE semantics = 'pub_sub' AND active = 0 ORDER BY name

-- name: topic.watch.still -> rows
-- Groups that have not moved in some shard for `patience` although there is more than `few` behind it, about.
SELECT t.name, g.name, max(n.at - greatest(c.moved_at, g.alive_since)), max(h.ceil - coalesce(b.ceil, 0))
FROM {group} g JOIN {topic} t ON t.id = g.topic_id JOIN {cursor} c ON c.group_id = g.id
     JOIN {head} d ON d.topic_id = t.id JOIN {tick} h ON h.topic_id = t.id AND h.tick = d.tick
     LEFT JOIN {tick} b ON b.topic_id = t.id AND b.tick = c.base, (SELECT {clock} AS at) n
WHERE g.state = 'active' AND g.alive_since < n.at - :patience::interval
  AND c.moved_at < n.at - :patience::interval AND (c.target IS NOT NULL OR c.base < d.tick)
  AND h.ceil - coalesce(b.ceil, 0) > :few
GROUP BY 1, 2 ORDER BY 1, 2

-- name: topic.watch.open -> rows
-- Events that somebody should have had long ago, counted up to a limit, and the age of the oldest.
SELECT count(*), max(n.at - least(greatest(o.created_at, {first_time}), {last_time}))
FROM (SELECT {clock} AS at) n, LATERAL (
  SELECT m.created_at FROM {mark} m
  WHERE m.completed_at IS NULL AND m.required OPERATOR(pg_catalog.<>) {log_nobody} AND m.created_at < n.at - :patience::interval
  ORDER BY m.seq LIMIT :limit) o

-- name: topic.watch.acks -> rows
SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = to_regclass('{ack}')

-- name: topic.watch.written -> rows
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {log_seq}

-- name: topic.watch.horizon -> rows
-- Transactions that have a number, so may have written. Those of other roles show no time to a role without
-- pg_read_all_stats.
SELECT max(age) FROM (
  SELECT clock_timestamp() - xact_start AS age FROM pg_stat_activity
  WHERE datname = current_database() AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()
  UNION ALL
  SELECT clock_timestamp() - prepared FROM pg_prepared_xacts WHERE database = current_database()) a

-- name: topic.watch.orphans -> rows
-- Groups without a sign for long, with nothing taken and nothing parked: nobody misses them.
SELECT t.name, g.name, g.state, n.at - g.heartbeat_at
FROM {group} g JOIN {topic} t ON t.id = g.topic_id, (SELECT {clock} AS at) n
WHERE g.state <> 'cancelled' AND g.heartbeat_at < n.at - :silence::interval
  AND NOT EXISTS (SELECT 1 FROM {parked} p WHERE p.group_id = g.id)
  AND NOT EXISTS (SELECT 1 FROM {range} r WHERE r.group_id = g.id)
ORDER BY 1, 2

-- name: topic.watch.mismatched -> rows
-- Open events that wait for a group which is not among the living: sets are compared, not times.
SELECT count(*) FROM (
  SELECT 1 FROM {topic} t, {mark} m
  WHERE t.id = :topic AND m.completed_at IS NULL AND m.required & ~t.required <> 0 LIMIT :limit) m

-- name: topic.watch.mismatched_wide -> rows
SELECT count(*) FROM (
  SELECT 1 FROM {topic} t, {mark} m
  WHERE t.id = :topic AND m.completed_at IS NULL AND NOT m.required OPERATOR(pg_catalog.<@) t.audience LIMIT :limit) m

-- name: topic.watch.raise -> rows
-- What is new among the things found.
INSERT INTO {alert} (name, topic, group_name, text, since)
SELECT u.name, u.topic, u.group_name, u.text, {clock}
FROM unnest(:names::text[], :topics::text[], :groups::text[], :texts::text[]) AS u(name, topic, group_name, text)
ON CONFLICT (name, topic, group_name) DO NOTHING
RETURNING name, topic, group_name, text

-- name: topic.watch.clear -> rows
-- What was looked for and not found any more.
DELETE FROM {alert} a
WHERE a.name = ANY(:looked::text[])
  AND NOT EXISTS (
    SELECT 1 FROM unnest(:names::text[], :topics::text[], :groups::text[]) AS u(name, topic, group_name)
    WHERE (u.name, u.topic, u.group_name) = (a.name, a.topic, a.group_name))
RETURNING a.name, a.topic, a.group_name, a.text

-- name: topic.watch.alerts -> rows
SELECT name, topic, group_name, text, since FROM {alert} ORDER BY since, name, topic, group_name

-- name: topic.watch.notify -> rows
-- Without data: any role of the database may listen. Who hears it looks into the tables.
SELECT pg_notify('{alert_channel}', '')
