-- slot: waited
extract(epoch FROM {clock} - due)::float8

-- slot: age
extract(epoch FROM {clock} - m.received_at)::float8

-- slot: message_of_p
-- OFFSET 0: message by message in this order, until the page is full; joined as a whole it would read all messages.
CROSS JOIN LATERAL (SELECT * FROM {message} x WHERE x.seq = p.seq OFFSET 0) m

-- slot: message_of_d
CROSS JOIN LATERAL (SELECT * FROM {message} x WHERE x.seq = d.seq OFFSET 0) m

-- slot: message_of_f
CROSS JOIN LATERAL (SELECT * FROM {message} x WHERE x.seq = f.seq OFFSET 0) m

-- slot: in_their_ids
= ANY(:ids::text[]::{id_type}[])
