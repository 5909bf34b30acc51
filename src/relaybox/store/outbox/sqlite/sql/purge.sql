-- name: outbox.purge.done -> count
-- Of those the finished: neither pending nor dead.
DELETE FROM {event}
WHERE seq {in_seqs}
  AND NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.seq = {event}.seq)
  AND NOT EXISTS (SELECT 1 FROM {dead} d WHERE d.seq = {event}.seq)

-- name: outbox.purge.pending -> count
DELETE FROM {pending} WHERE seq {in_seqs}

-- name: outbox.purge.letter -> count
DELETE FROM {dead} WHERE seq {in_seqs}

-- name: outbox.purge.hold -> count
DELETE FROM {hold} WHERE seq {in_seqs}

-- name: outbox.purge.event -> count
DELETE FROM {event} WHERE seq {in_seqs}
