-- slot: filter
(:event_type::text IS NULL OR e.event_type = :event_type)
  AND (:aggregate_type::text IS NULL OR coalesce(e.aggregate_type, '__GLOBAL__') = :aggregate_type)
  AND (:aggregate_id::text IS NULL OR e.aggregate_id = :aggregate_id)
  AND (:tenant_id::text IS NULL OR e.tenant_id = :tenant_id)

-- slot: event_columns
e.event_id, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant_id, e.content_type,
e.payload, e.headers, e.occurred_at, e.deliver_at, e.created_at
