-- slot: event_columns
-- Times as bytes: most are never looked at.
e.event_id, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant_id, e.content_type,
e.payload, e.headers,
timestamptz_send(e.occurred_at), timestamptz_send(e.deliver_at), timestamptz_send(e.created_at)

-- slot: open_rows
(SELECT seq, attempts, last_error, due, false AS claimed FROM {pending}
 UNION ALL
 SELECT item / 65536, (item % 65536::bigint)::integer, NULL, c.until, c.owner IS NOT NULL
 FROM {claim} c, unnest(c.items) AS item) p

-- slot: open_due
CASE WHEN NOT p.claimed THEN p.due END

-- slot: claimed
p.claimed

-- slot: and_unclaimed
AND e.seq NOT IN (SELECT item / 65536 FROM {claim} c, unnest(c.items) AS item)

-- slot: and_not_claimed
AND s.seq NOT IN (SELECT item / 65536 FROM {claim} c, unnest(c.items) AS item)

-- slot: hashed
unnest(:seqs::bigint[], :hashes::bigint[]) AS s(seq, key_hash)
