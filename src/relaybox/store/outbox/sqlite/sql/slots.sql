-- slot: event_columns
-- As they lie there, where the client library cannot read them: a type is only a wish here.
CAST(e.event_id AS blob), CAST(e.event_type AS blob), CAST(e.aggregate_type AS blob), CAST(e.aggregate_id AS blob),
CAST(e.tenant_id AS blob), CAST(e.content_type AS blob), CAST(e.payload AS blob), CAST(e.headers AS blob),
CASE WHEN typeof(e.occurred_at) = 'text' THEN x'' ELSE e.occurred_at END,
CASE WHEN typeof(e.deliver_at) = 'text' THEN x'' ELSE e.deliver_at END,
CASE WHEN typeof(e.created_at) = 'text' THEN x'' ELSE e.created_at END

-- slot: hashed
(SELECT json_extract(value, '$[0]') AS seq, json_extract(value, '$[1]') AS key_hash FROM json_each(:rows)) s
