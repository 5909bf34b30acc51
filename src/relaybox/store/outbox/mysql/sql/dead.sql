-- name: outbox.dead.pick -> rows
SELECT d.seq FROM {seqs} STRAIGHT_JOIN {dead} d ON d.seq = s.seq
WHERE :cutoff IS NULL OR d.dead_at <= :cutoff FOR UPDATE

-- name: outbox.dead.replay -> count
-- Back to the queue with fresh attempts; the old error stays readable until the next outcome.
INSERT INTO {pending} (seq, due, key_hash, attempts, last_error, since)
SELECT d.seq, {clock}, d.key_hash, 0, d.last_error, {clock} FROM {seqs} STRAIGHT_JOIN {dead} d ON d.seq = s.seq

-- name: outbox.dead.unpark -> count
-- A replayed head may be claimed again; the rows behind it still wait for it.
UPDATE {seqs} STRAIGHT_JOIN {hold} h ON h.seq = s.seq SET h.parked = false
