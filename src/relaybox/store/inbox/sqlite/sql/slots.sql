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

-- slot: done_again
-- One that was processed and waits all the same was replayed past us.
ON CONFLICT (seq) DO UPDATE
SET processed_at = excluded.processed_at, attempts = excluded.attempts, waited = excluded.waited
