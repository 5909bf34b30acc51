-- name: outbox.purge.pending -> count
DELETE FROM {pending} WHERE seq {in_seqs}

-- name: outbox.purge.letter -> count
DELETE FROM {dead} WHERE seq {in_seqs}

-- name: outbox.purge.hold -> count
DELETE FROM {hold} WHERE seq {in_seqs}

-- name: outbox.purge.event -> count
DELETE FROM {event} WHERE seq {in_seqs}
