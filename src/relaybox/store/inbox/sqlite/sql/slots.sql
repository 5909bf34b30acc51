-- slot: waited
({clock} - due) / 1000000.0

-- slot: age
({clock} - m.received_at) / 1000000.0
