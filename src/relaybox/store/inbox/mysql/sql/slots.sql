-- slot: waited
timestampdiff(MICROSECOND, due, {clock}) / 1000000e0

-- slot: age
timestampdiff(MICROSECOND, m.received_at, {clock}) / 1000000e0
