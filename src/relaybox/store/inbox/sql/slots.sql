-- slot: filter
AND (:event_type::text IS NULL OR m.event_type = :event_type)
  AND (:source::text IS NULL OR m.source = :source)
  AND (:aggregate_id::text IS NULL OR m.aggregate_id = :aggregate_id)
  AND (:tenant_id::text IS NULL OR m.tenant_id = :tenant_id)
  AND (:since::timestamptz IS NULL OR m.received_at >= :since)
  AND (:before::timestamptz IS NULL OR m.received_at < :before)

-- slot: message_columns
m.event_id, m.event_type, m.aggregate_type, m.aggregate_id, m.tenant_id, m.content_type,
m.payload, m.headers, m.occurred_at, NULL, m.received_at

-- slot: without_payload
m.event_id, m.event_type, m.aggregate_type, m.aggregate_id, m.tenant_id, m.content_type,
{no_bytes}, m.headers, m.occurred_at, NULL, m.received_at

-- slot: found
-- What became of a message, wherever it is.
coalesce(p.attempts, d.attempts, f.attempts), coalesce(p.last_error, d.last_error),
coalesce(p.position, d.position), CASE WHEN p.owner IS NULL AND NOT p.held THEN p.due END,
coalesce(d.dead_at, f.processed_at),
CASE WHEN d.seq IS NOT NULL THEN 'dead' WHEN p.seq IS NULL THEN 'processed' WHEN p.held THEN 'held'
     WHEN p.owner IS NOT NULL THEN 'claimed' WHEN p.attempts > 0 THEN 'retry' ELSE 'pending' END

-- slot: untried
-- Given back: due at once, and the attempt that claiming counted is taken back.
due = {clock}, token = NULL, owner = NULL, claimed_at = NULL,
attempts = {greatest}(attempts - 1, 0), strikes = {greatest}(strikes - 1, 0)

-- slot: message_of_p
JOIN {message} m ON m.seq = p.seq

-- slot: message_of_d
JOIN {message} m ON m.seq = d.seq

-- slot: message_of_f
JOIN {message} m ON m.seq = f.seq
