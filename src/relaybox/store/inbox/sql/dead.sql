-- name: inbox.replay.undone -> count
DELETE {from_rows} {done_rows} WHERE {these}

-- name: inbox.replay.undead -> count
DELETE {from_rows} {dead_rows} WHERE {these}

-- name: inbox.purge.message -> count
DELETE {from_rows} {message_rows} WHERE {these}
