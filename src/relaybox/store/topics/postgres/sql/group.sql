-- Groups of a topic. Whatever changes their states holds the topic row's lock first, so that `active`, `required` and
-- `audience` are always those of the groups as committed. Writers read the row without a lock.

-- name: topic.group.lock_topic -> rows
SELECT id FROM {topic} WHERE id = :topic FOR NO KEY UPDATE

-- name: topic.group.tracking -> rows
SELECT tracking FROM {topic} WHERE id = :topic

-- name: topic.group.find -> rows
SELECT g.id, g.topic_id, t.name, g.name, g.generation, g.state, g.ordered, g.bit, g.since, g.first_seq, g.start,
       g.start_tick, g.max_attempts, g.on_exhausted, g.heartbeat_interval, g.heartbeat_timeout, g.heartbeat_at,
       g.failures, g.stalled, g.reason, g.state_at, g.created_at, g.lost
FROM {group} g JOIN {topic} t ON t.id = g.topic_id
WHERE (:topic::text IS NULL OR t.name = :topic::text) AND (:name::text IS NULL OR g.name = :name::text)
  AND (:id::integer IS NULL OR g.id = :id::integer)
ORDER BY t.name, g.name, g.generation

-- name: topic.group.insert -> rows
WITH g AS (
  INSERT INTO {group} (topic_id, name, generation, state, ordered, bit, since, first_seq, start, start_tick,
                       max_attempts, on_exhausted, heartbeat_interval, heartbeat_timeout, heartbeat_at, state_at,
                       created_at, checked_at, alive_since)
  SELECT :topic::integer, :name::text,
         1 + coalesce((SELECT max(generation) FROM {group} WHERE topic_id = :topic::integer AND name = :name::text), 0),
         'active', :ordered, :bit, :since, :first, :start, :base, :max_attempts, :on_exhausted, :interval, :timeout,
         n.at, n.at, n.at, n.at, n.at
  FROM (SELECT {clock} AS at) n
  RETURNING id),
l AS (INSERT INTO {latch} (group_id) SELECT id FROM g)
SELECT id FROM g

-- name: topic.group.cursors -> count
INSERT INTO {cursor} (group_id, shard, base, moved_at)
SELECT :id, shard, :base, {clock} FROM generate_series(0, :shards - 1) AS s(shard)

-- name: topic.group.options -> count
UPDATE {group}
SET max_attempts = :max_attempts, on_exhausted = :on_exhausted, heartbeat_interval = :interval,
    heartbeat_timeout = :timeout
WHERE id = :id

-- name: topic.group.set_state -> count
UPDATE {group}
SET state = :state::text, reason = :reason, state_at = n.at, stalled = :stalled,
    failures = CASE WHEN :state::text = 'active' THEN 0 ELSE failures END,
    heartbeat_at = CASE WHEN :state::text = 'active' THEN n.at ELSE heartbeat_at END,
    checked_at = CASE WHEN :state::text = 'active' THEN n.at ELSE checked_at END,
    alive_since = CASE WHEN :state::text = 'active' THEN n.at ELSE alive_since END
FROM (SELECT {clock} AS at) n
WHERE id = :id

-- name: topic.group.count -> count
-- What writers read: who is subscribed.
UPDATE {topic} t
SET active = s.active, required = s.required, audience = s.audience
FROM (SELECT count(*) FILTER (WHERE state IN ({delivered_states})) AS active,
             coalesce(bit_or(1::bigint << bit) FILTER (WHERE state IN ({required_states})), 0) AS required,
             coalesce(array_agg(id ORDER BY id) FILTER (WHERE state IN ({required_states})), '{}') AS audience
      FROM {group} WHERE topic_id = :topic) s
WHERE t.id = :topic

-- name: topic.group.promise -> count
-- From this tick on there is a group that is to have the topic's events. Ended promises that are older than anything the
-- topic may hold go.
WITH old AS (
  DELETE FROM {promise} p USING {topic} t
  WHERE t.id = :topic AND p.topic_id = t.id AND p.ended_at < {clock} - t.max_retention)
INSERT INTO {promise} AS p (topic_id, tick, since)
SELECT k.topic_id, k.tick, k.snapshot FROM {tick} k WHERE k.topic_id = :topic AND k.tick = :tick
ON CONFLICT (topic_id) WHERE until IS NULL
DO UPDATE SET tick = excluded.tick, since = excluded.since WHERE p.tick > excluded.tick

-- name: topic.group.end_promise -> count
-- Nobody is left to have what comes now.
UPDATE {promise} p SET until = pg_current_snapshot(), ended_at = {clock}
WHERE p.topic_id = :topic AND p.until IS NULL
  AND NOT EXISTS (SELECT 1 FROM {group} g WHERE g.topic_id = :topic AND g.state IN ({promised_states}))

-- name: topic.group.drop_cursors -> count
DELETE FROM {cursor} WHERE group_id = :id

-- name: topic.group.drop_ranges -> count
DELETE FROM {range} WHERE group_id = :id

-- name: topic.group.free_bit -> rows
-- No bit that a group has, whatever its state: a cancelled one keeps it until no mark refers to it.
SELECT min(bit) FROM generate_series(0, 63) AS b(bit)
WHERE NOT EXISTS (SELECT 1 FROM {group} g WHERE g.topic_id = :topic AND g.bit = b.bit)

-- name: topic.group.cancelled_bits -> rows
SELECT id, bit FROM {group} WHERE topic_id = :topic AND state = 'cancelled' AND bit IS NOT NULL ORDER BY bit

-- name: topic.group.bit_in_use -> rows
SELECT EXISTS (SELECT 1 FROM {mark} WHERE (required | done) & (1::bigint << :bit::integer) <> 0)

-- name: topic.group.drop_bit -> count
UPDATE {group} SET bit = NULL WHERE id = :id

-- name: topic.group.fence_ranges -> count
-- What members of a dead group still say of their ranges counts no more. Waits for a settle that is under way.
WITH r AS MATERIALIZED (SELECT token FROM {range} WHERE group_id = :id ORDER BY token FOR UPDATE)
UPDATE {range} SET owner = 0, until = {clock}, token = (random() * 9e18::float8)::bigint
FROM r WHERE {range}.token = r.token

-- name: topic.group.fence_parked -> count
WITH p AS MATERIALIZED (
  SELECT seq FROM {parked} WHERE group_id = :id AND token IS NOT NULL ORDER BY seq FOR UPDATE)
UPDATE {parked} SET owner = NULL, until = NULL, token = NULL, due = {clock}
FROM p WHERE {parked}.group_id = :id AND {parked}.seq = p.seq

-- name: topic.group.tick_before_time -> rows
-- Whatever it has seen was created before: an event is committed after it is created. The minute is for clocks that were
-- set back; what is too early is passed over anyway.
SELECT coalesce(max(tick), 0) FROM {tick}
WHERE topic_id = :topic AND at < :since::timestamptz - interval '1 minute'

-- name: topic.group.tick_before_event -> rows
SELECT coalesce(max(tick), 0) FROM {tick} WHERE topic_id = :topic AND ceil < :event

-- name: topic.group.has_tick -> rows
SELECT tick FROM {tick} WHERE topic_id = :topic AND tick = :tick

-- name: topic.group.last_number -> rows
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {log_seq}
