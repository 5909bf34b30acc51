-- slot: clock
coalesce(:now, clock_timestamp())

-- slot: now_once
-- A scalar subquery lets an index bound the scan: clock_timestamp() alone is volatile.
(SELECT {clock})

-- slot: first_time
-- The ends of the time that clients can read, in any time zone.
'0001-01-02 00:00+00'::timestamptz

-- slot: last_time
'9999-12-30 00:00+00'::timestamptz

-- slot: ttl
make_interval(secs => :ttl::float8)

-- slot: ttl_ago
(SELECT {clock} - {ttl})

-- slot: lease_time
make_interval(secs => :lease::float8)

-- slot: never
'infinity'::timestamptz

-- slot: in_seqs
= ANY(:seqs::bigint[])

-- slot: in_owners
= ANY(:owners::bigint[])

-- slot: in_ids
= ANY(:event_ids::text[])

-- slot: in_keys
= ANY(:keys::text[])

-- slot: no_bytes
''::bytea

-- slot: last_number
lastval()

-- slot: find_text
strpos

-- slot: event_arrays
:event_ids::text[], :event_types::text[], :aggregate_types::text[], :aggregate_ids::text[], :tenant_ids::text[],
:content_types::text[], :payloads::bytea[], :headers::text[], :occurred_ats::timestamptz[]

-- slot: server_version
current_setting('server_version')

-- slot: session
pg_backend_pid()
