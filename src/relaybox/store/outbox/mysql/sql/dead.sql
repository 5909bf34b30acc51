-- name: outbox.dead.unpark -> count
-- A replayed head may be claimed again; the rows behind it still wait for it.
UPDATE {seqs} STRAIGHT_JOIN {hold} h ON h.seq = s.seq SET h.parked = false
