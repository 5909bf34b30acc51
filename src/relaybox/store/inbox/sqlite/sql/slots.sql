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
