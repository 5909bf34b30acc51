-- name: outbox.settle.done -> count
-- Done means gone. The token is the fence: a claim that was taken over changes nothing.
DELETE p FROM {held} STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = s.seq AND p.token = s.token

-- name: outbox.settle.retry -> count
-- With the attempts the claim counted, unless this one was nobody's fault.
UPDATE JSON_TABLE({rows}, '$[*]' COLUMNS (
         seq bigint PATH '$[0]', token bigint PATH '$[1]', delay double PATH '$[2]',
         reason text {text} PATH '$[3]', uncounted integer PATH '$[4]')) s
STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = s.seq AND p.token = s.token
SET p.due = {clock} + INTERVAL s.delay SECOND, p.last_error = s.reason, p.attempts = p.attempts - s.uncounted,
    p.token = NULL, p.owner = NULL, p.claimed_at = NULL, p.since = NULL

-- name: outbox.settle.dead -> count
-- FOR UPDATE: between this statement and the delete nobody may take the row over. One that is a dead letter already dies
-- again, of what it died of now.
INSERT INTO {dead} (seq, key_hash, attempts, last_error, dead_at)
SELECT p.seq, p.key_hash, p.attempts, s.reason, {clock}
FROM (SELECT j.* FROM JSON_TABLE({rows}, '$[*]' COLUMNS (
        seq bigint PATH '$[0]', token bigint PATH '$[1]', reason text {text} PATH '$[2]')) j) s
STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = s.seq AND p.token = s.token
FOR UPDATE
ON DUPLICATE KEY UPDATE attempts = VALUES(attempts), last_error = VALUES(last_error), dead_at = VALUES(dead_at)

-- name: outbox.settle.hold -> count
-- The rest of the key waits for this row. Fenced like every settle: the row must still be ours.
-- `parked` is set before `seq`, whose old value it looks at.
INSERT INTO {hold} (key_hash, seq, parked, since)
SELECT p.key_hash, p.seq, :parked, {clock}
FROM {held} STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = s.seq AND p.token = s.token
ON DUPLICATE KEY UPDATE
  parked = CASE WHEN {hold}.seq >= VALUES(seq) THEN VALUES(parked) ELSE {hold}.parked END,
  seq = least({hold}.seq, VALUES(seq))

-- name: outbox.settle.unhold -> count
-- A head that is about to be settled for good frees its key. Fenced too: a zombie's late success must not free a key
-- whose head somebody else is trying again.
DELETE h FROM {held} STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = s.seq AND p.token = s.token
STRAIGHT_JOIN {hold} h ON h.seq = p.seq
