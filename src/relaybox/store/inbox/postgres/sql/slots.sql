-- slot: waited
extract(epoch FROM {clock} - greatest(due, {first_time}))::float8

-- slot: age
extract(epoch FROM {clock} - least(greatest(m.received_at, {first_time}), {last_time}))::float8

-- slot: message_times
-- As bytes: what no client can read as a time must not keep it from the rest.
timestamptz_send(m.occurred_at), NULL, timestamptz_send(m.received_at)

-- slot: times_of_t
timestamptz_send(t.occurred_at), NULL, timestamptz_send(t.received_at)

-- slot: open_due
CASE WHEN p.owner IS NULL AND NOT p.held THEN least(greatest(p.due, {first_time}), {last_time}) END

-- slot: dead_at
least(greatest(d.dead_at, {first_time}), {last_time})

-- slot: done_at
least(greatest(f.processed_at, {first_time}), {last_time})

-- slot: message_of_p
-- OFFSET 0: message by message in this order, until the page is full; joined as a whole it would read all messages.
CROSS JOIN LATERAL (SELECT * FROM {message} x WHERE x.seq = p.seq OFFSET 0) m

-- slot: message_of_d
CROSS JOIN LATERAL (SELECT * FROM {message} x WHERE x.seq = d.seq OFFSET 0) m

-- slot: message_of_f
CROSS JOIN LATERAL (SELECT * FROM {message} x WHERE x.seq = f.seq OFFSET 0) m

-- slot: in_their_ids
= ANY(:ids::text[]::{id_type}[])

-- slot: all_waited
least(greatest(sum(round(t.waited * 1e6::float8)), -1e18::float8), 1e18::float8)::bigint

-- slot: received
least(greatest(m.received_at, {first_time}), {last_time})
