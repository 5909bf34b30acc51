-- slot: filter
(:type::text IS NULL OR e.event_type = :type)
  AND (:aggregate_type::text IS NULL OR coalesce(e.aggregate_type, '__GLOBAL__') = :aggregate_type)
  AND (:key::text IS NULL OR e.aggregate_id = :key)
  AND (:tenant::text IS NULL OR e.tenant_id = :tenant)
  AND (:data_key::text IS NULL OR {find_text}(e.headers, :data_key) > 0)

-- slot: due_within
(:since::timestamptz IS NULL OR coalesce(e.deliver_at, e.created_at) >= :since)
  AND (:until::timestamptz IS NULL OR coalesce(e.deliver_at, e.created_at) < :until)

-- slot: from_open
FROM {open_rows} JOIN {event} e ON e.seq = p.seq
WHERE p.seq > :after AND p.seq <= :upto AND (:seqs::bigint[] IS NULL OR p.seq {in_seqs})
  AND {filter} AND {due_within} AND (:error::text IS NULL OR {find_text}(p.last_error, :error) > 0)

-- slot: from_dead
FROM {dead} d JOIN {event} e ON e.seq = d.seq
WHERE d.seq > :after AND d.seq <= :upto AND (:seqs::bigint[] IS NULL OR d.seq {in_seqs})
  AND {filter} AND (:error::text IS NULL OR {find_text}(d.last_error, :error) > 0)
  AND (:since::timestamptz IS NULL OR d.dead_at >= :since) AND (:until::timestamptz IS NULL OR d.dead_at < :until)

-- slot: from_done
FROM {event} e
WHERE e.seq > :after AND e.seq <= :upto AND (:seqs::bigint[] IS NULL OR e.seq {in_seqs})
  AND {filter} AND {due_within} AND :error::text IS NULL
  AND NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.seq = e.seq)
  AND NOT EXISTS (SELECT 1 FROM {dead} d WHERE d.seq = e.seq) {and_unclaimed}

-- slot: once
-- A row that is there all the same says that the event waits: that is what this one would say.
ON CONFLICT (seq) DO NOTHING

-- slot: open_error
p.last_error

-- slot: dead_error
d.last_error

-- slot: event_columns
{event_head}, {payload}, {headers}, {event_times}

-- slot: claimed_columns
-- Payloads only up to :room bytes each. Larger ones are read after the claim, as far as there is room: payloads.py.
{event_head}, {payload_in_room}, {headers}, {claimed_times}

-- slot: listed_columns
{event_head}, {payload_in_room}, {headers}, {event_times}

-- slot: event_head
e.event_id, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant_id, e.content_type

-- slot: event_times
e.occurred_at, e.deliver_at, e.created_at

-- slot: claimed_times
{event_times}

-- slot: payload
CASE WHEN {size}(e.payload) <= 1048576 AND {fit} THEN {whole_payload} END

-- slot: payload_in_room
CASE WHEN {size}(e.payload) <= :room::integer AND {fit} THEN e.payload END

-- slot: whole_payload
e.payload

-- slot: headers
CASE WHEN {size}(e.headers) <= 50000 THEN e.headers END

-- slot: fit
-- What is no event, or larger than one may be, is not read at all.
(e.headers IS NULL OR {size}(e.headers) <= 50000) AND e.event_id IS NOT NULL AND e.event_type IS NOT NULL

-- slot: lasting
-- A shard's lease has not ended, or its owner lives: who is late with a renewal keeps what nobody could take.
(until >= {clock} OR EXISTS (SELECT 1 FROM {instance} i WHERE i.id = owner))
