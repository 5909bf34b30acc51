-- name: outbox.dead.unpark -> count
-- A replayed head may be claimed again; the rows behind it still wait for it.
UPDATE {hold} SET parked = false WHERE seq {in_seqs}
