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
