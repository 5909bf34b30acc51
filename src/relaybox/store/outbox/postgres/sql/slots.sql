-- slot: event_times
-- Times as bytes: most are never looked at.
timestamptz_send(e.occurred_at), timestamptz_send(e.deliver_at), timestamptz_send(e.created_at)

-- slot: item
-- What a claim has of a pending row: its number and the attempts with this one. NULL: no event can have that number.
CASE WHEN seq BETWEEN 1 AND 140737488355327 THEN seq * 65536 + least(greatest(attempts, 0), 65534) + 1 END

-- slot: odd
-- Such a row becomes a dead letter here, or it would come back for ever.
odd AS (
  INSERT INTO {dead} (seq, attempts, last_error, dead_at)
  SELECT seq, 0, 'Undecodable: its pending row has a number that no event can have', {clock} FROM gone
  WHERE item IS NULL
  ON CONFLICT (seq) DO NOTHING)

-- slot: gone
-- What was picked of the rows that wait.
gone AS (
  DELETE FROM {pending} WHERE ctid = ANY(ARRAY(SELECT ctid FROM picked))
  RETURNING seq, {item} AS item, coalesce(since, due) AS since),
{odd}

-- slot: held
-- The claim: one row.
held AS (
  INSERT INTO {claim} (token, owner, until, claimed_at, items, since)
  SELECT :token, :owner, c.now + {lease_time}, c.now, w.items, {claimed_since}
  FROM clock c, whole w
  WHERE w.items IS NOT NULL)

-- slot: claimed_since
-- Not after now, and a time that can be compared: a pending row may say anything.
least(greatest(w.since, {first_time}), c.now)

-- slot: open_rows
(SELECT seq, attempts, last_error, due, false AS claimed FROM {pending}
 UNION ALL
 SELECT item / 65536, (item % 65536::bigint)::integer, NULL, c.until, c.owner IS NOT NULL
 FROM {claim} c, unnest(c.items) AS item) p

-- slot: open_due
CASE WHEN NOT p.claimed THEN least(greatest(p.due, {first_time}), {last_time}) END

-- slot: dead_at
least(greatest(d.dead_at, {first_time}), {last_time})

-- slot: claimed
p.claimed

-- slot: and_unclaimed
AND e.seq NOT IN (SELECT item / 65536 FROM {claim} c, unnest(c.items) AS item WHERE item IS NOT NULL)

-- slot: and_not_claimed
AND s.seq BETWEEN 1 AND 140737488355327
AND s.seq NOT IN (SELECT item / 65536 FROM {claim} c, unnest(c.items) AS item WHERE item IS NOT NULL)

-- slot: hashed
unnest(:seqs::bigint[], :hashes::bigint[]) AS s(seq, key_hash)

-- slot: turn_of
-- Who claims from key to key, and when.
clock AS MATERIALIZED (
  SELECT {clock} AS now, set_config('synchronous_commit', 'off', true)),
mine AS MATERIALIZED (
  SELECT shard FROM {shard} WHERE owner = :owner AND until > (SELECT now FROM clock)
    AND shard <> ALL(:leaving::integer[]) FOR SHARE)

-- slot: taken
-- What it takes of the keys in `walk`.
picked AS MATERIALIZED (
  SELECT r.ctid FROM walk w
  CROSS JOIN LATERAL (
    SELECT p.ctid FROM {pending} p
    WHERE p.key_hash = w.key_hash AND (p.due <= (SELECT now FROM clock) OR p.since IS NOT NULL)
      AND p.seq <= coalesce((SELECT h.seq - h.parked::integer FROM {hold} h WHERE h.key_hash = w.key_hash),
                            9223372036854775807)
    ORDER BY p.seq LIMIT :share::integer) r
  WHERE w.key_hash NOT IN (SELECT unnest(:full::bigint[]))
    AND (w.key_hash >> 32) % :shards = ANY(ARRAY(SELECT shard FROM mine))
    AND NOT EXISTS (SELECT 1 FROM {claim} WHERE until <= (SELECT now FROM clock) OR owner IS NULL
                    OR (owner = :owner AND token <> ALL(:known::bigint[])
                        AND EXISTS (SELECT 1 FROM unnest(items) AS item WHERE item / 65536 NOT IN (SELECT unnest(:kept::bigint[])))))
    AND NOT EXISTS (SELECT 1 FROM {lease})
  LIMIT :limit),
gone AS (
  DELETE FROM {pending} WHERE ctid = ANY(ARRAY(SELECT ctid FROM picked))
  RETURNING key_hash, seq, {item} AS item, coalesce(since, due) AS since),
{odd},
{held_by_key}

-- slot: claim_taken
-- The end of a claim: what was `taken` becomes one row, and the events are answered. A last row is to follow.
whole AS MATERIALIZED (
  SELECT array_agg(item ORDER BY item) AS items, bool_or(item % 65536::bigint > 1) AS tried, min(since) AS since FROM taken),
{held}
SELECT e.seq, {claimed_columns}, NULL::bigint[]
FROM {event} e WHERE e.seq = ANY(ARRAY(SELECT item / 65536 FROM taken))
UNION ALL

-- slot: held_by_key
-- The claim of what is gone from the rows that wait, and its events.
held AS (
  INSERT INTO {claim} (token, owner, until, claimed_at, items, since)
  SELECT :token, :owner, c.now + {lease_time}, c.now, w.items, {claimed_since}
  FROM clock c, (SELECT array_agg(item ORDER BY item) AS items, min(since) AS since FROM gone WHERE item IS NOT NULL) w
  WHERE w.items IS NOT NULL)
SELECT t.item / 65536, {claimed_columns}, (t.item % 65536::bigint)::integer, t.key_hash
FROM gone t LEFT JOIN {event} e ON e.seq = t.item / 65536
WHERE t.item IS NOT NULL
