-- slot: skip_locked
FOR UPDATE SKIP LOCKED

-- slot: for_update
FOR UPDATE

-- slot: greatest
greatest

-- slot: event_fields
event_id, event_type, aggregate_type, aggregate_id, tenant_id, content_type, payload, headers, occurred_at
