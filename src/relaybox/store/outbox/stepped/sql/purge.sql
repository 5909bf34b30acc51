-- name: outbox.purge.pending -> count
DELETE {from_rows} {pending_rows} WHERE {these}

-- name: outbox.purge.letter -> count
DELETE {from_rows} {dead_rows} WHERE {these}
