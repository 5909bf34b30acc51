-- slot: waited
timestampdiff(MICROSECOND, due, {clock}) / 1000000e0

-- slot: age
timestampdiff(MICROSECOND, m.received_at, {clock}) / 1000000e0

-- slot: pending_rows
{seqs} STRAIGHT_JOIN {pending} t FORCE INDEX (PRIMARY) ON t.seq = s.seq

-- slot: dead_rows
{seqs} STRAIGHT_JOIN {dead} t FORCE INDEX (PRIMARY) ON t.seq = s.seq

-- slot: done_rows
{seqs} STRAIGHT_JOIN {done} t FORCE INDEX (PRIMARY) ON t.seq = s.seq

-- slot: message_rows
{seqs} STRAIGHT_JOIN {message} t FORCE INDEX (PRIMARY) ON t.seq = s.seq

-- slot: these
true

-- slot: from_rows
t FROM

-- slot: with_message
STRAIGHT_JOIN {message} m ON m.seq = t.seq
