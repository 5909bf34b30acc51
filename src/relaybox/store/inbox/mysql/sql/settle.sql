-- name: inbox.settle.mark -> count
-- Processed, in the transaction of the effect. No row: the claim was lost, and nothing may be done. FOR UPDATE: from
-- here to the delete nobody may take the row over.
INSERT INTO {done} (seq, processed_at, attempts, waited)
SELECT seq, {clock}, attempts, timestampdiff(MICROSECOND, CAST(:received AS datetime(6)), {clock}) / 1000000e0
FROM {pending} WHERE seq = :seq AND token = :token FOR UPDATE
{done_again}

-- name: inbox.settle.lock -> rows
-- Of a batch what is still ours; from here on nobody else's.
SELECT p.seq FROM {held} STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = s.seq AND p.token = s.token
FOR UPDATE

-- name: inbox.settle.mark_all -> count
-- The same for what a batch has done.
INSERT INTO {done} (seq, processed_at, attempts, waited)
SELECT p.seq, {clock}, p.attempts, coalesce({age}, 0)
FROM {held} STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = s.seq AND p.token = s.token
LEFT JOIN {message} m ON m.seq = p.seq
{done_again}

-- name: inbox.settle.retry -> count
UPDATE JSON_TABLE({rows}, '$[*]' COLUMNS (
         seq bigint PATH '$[0]', delay double PATH '$[1]', reason text {text} PATH '$[2]',
         uncounted integer PATH '$[3]')) s
STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = s.seq
SET p.due = {clock} + INTERVAL s.delay SECOND, p.last_error = s.reason, p.attempts = p.attempts - s.uncounted,
    p.strikes = 0, p.token = NULL, p.owner = NULL, p.claimed_at = NULL

-- name: inbox.settle.dead -> count
INSERT INTO {dead} (seq, key_hash, position, priority, replayed, attempts, last_error, dead_at)
SELECT p.seq, p.key_hash, p.position, p.priority, p.replayed, p.attempts, s.reason, {clock}
FROM JSON_TABLE({rows}, '$[*]' COLUMNS (seq bigint PATH '$[0]', reason text {text} PATH '$[1]')) s
STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = s.seq
ON DUPLICATE KEY UPDATE attempts = VALUES(attempts), last_error = VALUES(last_error), dead_at = VALUES(dead_at),
                        told = false
