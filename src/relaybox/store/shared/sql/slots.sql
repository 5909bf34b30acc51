-- slot: skip_locked
FOR UPDATE SKIP LOCKED

-- slot: for_update
FOR UPDATE

-- slot: greatest
greatest

-- slot: least
least

-- slot: event_fields
event_id, event_type, aggregate_type, aggregate_id, tenant_id, content_type, payload, headers, occurred_at

-- slot: pending_rows
-- With {these}: the rows of :seqs. Where they are locked, MySQL must be led to them, or it locks what it looks at.
{pending} AS t

-- slot: dead_rows
{dead} AS t

-- slot: these
t.seq {in_seqs}

-- slot: from_rows
FROM

-- slot: size
-- In bytes.
octet_length

-- slot: server_version
version()
