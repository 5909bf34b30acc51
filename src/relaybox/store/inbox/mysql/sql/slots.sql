-- slot: waited
timestampdiff(MICROSECOND, due, {clock}) / 1000000e0

-- slot: age
timestampdiff(MICROSECOND, m.received_at, {clock}) / 1000000e0

-- slot: of_sender
(:sender IS NULL OR CAST(m.sender AS binary) = CAST(CONVERT(:sender USING utf8mb4) AS binary))

-- slot: done_rows
{seqs} STRAIGHT_JOIN {done} t FORCE INDEX (PRIMARY) ON t.seq = s.seq

-- slot: message_rows
{seqs} STRAIGHT_JOIN {message} t FORCE INDEX (PRIMARY) ON t.seq = s.seq

-- slot: with_message
STRAIGHT_JOIN {message} m ON m.seq = t.seq

-- slot: done_again
-- One that was processed and waits all the same was replayed past us.
ON DUPLICATE KEY UPDATE processed_at = VALUES(processed_at), attempts = VALUES(attempts), waited = VALUES(waited)
