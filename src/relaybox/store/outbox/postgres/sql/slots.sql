-- slot: event_columns
-- Times as bytes: most are never looked at.
e.event_id, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant_id, e.content_type,
e.payload, e.headers,
timestamptz_send(e.occurred_at), timestamptz_send(e.deliver_at), timestamptz_send(e.created_at)
