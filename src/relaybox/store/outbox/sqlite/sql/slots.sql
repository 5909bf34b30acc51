-- slot: event_columns
-- As they lie there, where the client library cannot read them: a type is only a wish here.
{raw_head}, {payload}, {raw_headers}, {raw_times}

-- slot: listed_columns
{raw_head}, CAST({payload_in_room} AS blob), {raw_headers}, {raw_times}

-- slot: open_error
CAST(p.last_error AS blob)

-- slot: dead_error
CAST(d.last_error AS blob)

-- slot: raw_head
CAST(e.event_id AS blob), CAST(e.event_type AS blob), CAST(e.aggregate_type AS blob), CAST(e.aggregate_id AS blob),
CAST(e.tenant_id AS blob), CAST(e.content_type AS blob)

-- slot: whole_payload
CAST(e.payload AS blob)

-- slot: raw_headers
CAST({headers} AS blob)

-- slot: raw_times
CASE WHEN typeof(e.occurred_at) = 'text' THEN x'' ELSE e.occurred_at END,
CASE WHEN typeof(e.deliver_at) = 'text' THEN x'' ELSE e.deliver_at END,
CASE WHEN typeof(e.created_at) = 'text' THEN x'' ELSE e.created_at END

-- slot: one_more
-- Attempts with this one. They end somewhere, and may be anything where a row is not ours.
min(max(attempts, 0), 65534) + 1

-- slot: hashed
(SELECT json_extract(value, '$[0]') AS seq, json_extract(value, '$[1]') AS key_hash FROM json_each(:rows)) s
