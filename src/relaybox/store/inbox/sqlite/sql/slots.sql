-- slot: waited
({clock} - due) / 1000000.0

-- slot: age
({clock} - m.received_at) / 1000000.0

-- slot: in_their_ids
IN (SELECT value FROM json_each(:ids))

-- slot: with_message
JOIN {message} m ON m.seq = t.seq

-- slot: whole_payload
CAST(m.payload AS blob)

-- slot: message_columns
-- As they lie there, where the client library cannot read them: a type is only a wish here.
CAST(m.event_id AS blob), CAST(m.event_type AS blob), CAST(m.aggregate_type AS blob), CAST(m.aggregate_id AS blob),
CAST(m.tenant_id AS blob), CAST(m.content_type AS blob), CAST({payload_in_room} AS blob), CAST({headers} AS blob),
{raw_times}

-- slot: raw_times
CASE WHEN typeof(m.occurred_at) = 'text' THEN x'' ELSE m.occurred_at END, NULL, {received}

-- slot: received
CASE WHEN typeof(m.received_at) = 'text' THEN x'' ELSE m.received_at END

-- slot: without_payload
CAST(t.event_id AS blob), CAST(t.event_type AS blob), CAST(t.aggregate_type AS blob), CAST(t.aggregate_id AS blob),
CAST(t.tenant_id AS blob), CAST(t.content_type AS blob), {no_bytes}, CAST(t.headers AS blob),
CASE WHEN typeof(t.occurred_at) = 'text' THEN x'' ELSE t.occurred_at END, NULL,
CASE WHEN typeof(t.received_at) = 'text' THEN x'' ELSE t.received_at END

-- slot: key_of_m
CAST(m.aggregate_id AS blob)

-- slot: key_of_t
CAST(t.aggregate_id AS blob)

-- slot: id_of_m
CAST(m.event_id AS blob)

-- slot: type_of_m
CAST(m.event_type AS blob)

-- slot: sender_of_m
CAST(m.sender AS blob)

-- slot: headers_of_m
CAST(m.headers AS blob)

-- slot: headers_of_t
CAST(t.headers AS blob)

-- slot: open_error
CAST(p.last_error AS blob)

-- slot: dead_error
CAST(d.last_error AS blob)
