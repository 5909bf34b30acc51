-- slot: filter
(:type::text IS NULL OR m.event_type = :type)
  AND (:aggregate_type::text IS NULL OR coalesce(m.aggregate_type, '__GLOBAL__') = :aggregate_type)
  AND (:key::text IS NULL OR m.aggregate_id = :key)
  AND (:tenant::text IS NULL OR m.tenant_id = :tenant) AND {of_sender}
  AND (:data_key::text IS NULL OR {find_text}(m.headers, :data_key) > 0)

-- slot: of_sender
(:sender::text IS NULL OR m.sender = :sender)

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
{claimed_columns}

-- slot: message_times
m.occurred_at, NULL, m.received_at

-- slot: key_of_m
m.aggregate_id

-- slot: id_of_m
m.event_id

-- slot: type_of_m
m.event_type

-- slot: sender_of_m
m.sender

-- slot: headers_of_m
m.headers

-- slot: open_error
p.last_error

-- slot: dead_error
d.last_error

-- slot: received
m.received_at

-- slot: open_due
CASE WHEN p.owner IS NULL AND NOT p.held THEN p.due END

-- slot: dead_at
d.dead_at

-- slot: done_at
f.processed_at

-- slot: claimed_columns
-- Payloads only up to :room bytes each. Larger ones are read after the claim, as far as there is room: payloads.py.
m.event_id, m.event_type, m.aggregate_type, m.aggregate_id, m.tenant_id, m.content_type,
{payload_in_room}, {headers}, {message_times}

-- slot: payload_in_room
CASE WHEN {size}(m.payload) <= :room::integer AND (m.headers IS NULL OR {size}(m.headers) <= 50000)
      AND m.event_id IS NOT NULL AND m.event_type IS NOT NULL THEN m.payload END

-- slot: headers
CASE WHEN {size}(m.headers) <= 50000 THEN m.headers END

-- slot: whole_payload
m.payload

-- slot: without_payload
t.event_id, t.event_type, t.aggregate_type, t.aggregate_id, t.tenant_id, t.content_type,
{no_bytes}, t.headers, {times_of_t}

-- slot: key_of_t
t.aggregate_id

-- slot: headers_of_t
t.headers

-- slot: times_of_t
t.occurred_at, NULL, t.received_at

-- slot: one_more
-- Attempts with this one. They end somewhere, and may be anything where a row is not ours.
{least}({greatest}(attempts, 0), 65534) + 1

-- slot: one_strike
{least}({greatest}(strikes, 0), 65534) + 1

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

-- slot: done_again
-- One that was processed and waits all the same was replayed past us.
ON CONFLICT (seq) DO UPDATE
SET processed_at = excluded.processed_at, attempts = excluded.attempts, waited = excluded.waited

-- slot: all_waited
-- In microseconds. It ends somewhere: what a row says may be anything.
{least}({greatest}(sum(round(t.waited * 1000000)), -1e18), 1e18)
