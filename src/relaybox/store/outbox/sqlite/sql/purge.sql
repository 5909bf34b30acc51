-- name: outbox.purge.hold -> count
DELETE FROM {hold} WHERE seq {in_seqs}

-- name: outbox.purge.event -> count
DELETE FROM {event} WHERE seq {in_seqs}
