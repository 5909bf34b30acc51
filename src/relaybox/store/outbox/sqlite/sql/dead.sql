-- name: outbox.dead.pick -> rows
SELECT seq FROM {dead} WHERE seq {in_seqs} AND (:cutoff IS NULL OR dead_at <= :cutoff)

-- name: outbox.dead.replay -> count
-- Back to the queue with fresh attempts; the old error stays readable until the next outcome.
INSERT INTO {pending} (seq, due, key_hash, attempts, last_error, since)
SELECT seq, {clock}, key_hash, 0, last_error, {clock} FROM {dead} WHERE seq {in_seqs}
