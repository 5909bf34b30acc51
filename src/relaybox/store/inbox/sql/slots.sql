-- slot: filter
(:type::text IS NULL OR m.event_type = :type)
  AND (:aggregate_type::text IS NULL OR coalesce(m.aggregate_type, '__GLOBAL__') = :aggregate_type)
  AND (:key::text IS NULL OR m.aggregate_id = :key)
  AND (:tenant::text IS NULL OR m.tenant_id = :tenant) AND {of_sender}
  AND (:data_key::text IS NULL OR {find_text}(m.headers, :data_key) > 0)

-- slot: of_sender
(:sender::text IS NULL OR coalesce(m.source, '') = :sender)

-- slot: received_within
(:since::timestamptz IS NULL OR m.received_at >= :since) AND (:until::timestamptz IS NULL OR m.received_at < :until)

-- slot: where_open
WHERE p.seq > :after AND p.seq <= :upto AND (:seqs::bigint[] IS NULL OR p.seq {in_seqs})
  AND {filter} AND {received_within} AND (:error::text IS NULL OR {find_text}(p.last_error, :error) > 0)

-- slot: where_dead
WHERE d.seq > :after AND d.seq <= :upto AND (:seqs::bigint[] IS NULL OR d.seq {in_seqs})
  AND {filter} AND (:error::text IS NULL OR {find_text}(d.last_error, :error) > 0)
  AND (:since::timestamptz IS NULL OR d.dead_at >= :since) AND (:until::timestamptz IS NULL OR d.dead_at < :until)

-- slot: where_done
WHERE f.seq > :after AND f.seq <= :upto AND (:seqs::bigint[] IS NULL OR f.seq {in_seqs})
  AND {filter} AND {received_within} AND :error::text IS NULL

-- slot: message_columns
m.event_id, m.event_type, m.aggregate_type, m.aggregate_id, m.tenant_id, m.content_type,
m.payload, m.headers, m.occurred_at, NULL, m.received_at

-- slot: without_payload
t.event_id, t.event_type, t.aggregate_type, t.aggregate_id, t.tenant_id, t.content_type,
{no_bytes}, t.headers, t.occurred_at, NULL, t.received_at

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

-- slot: done_rows
{done} AS t

-- slot: message_rows
{message} AS t
