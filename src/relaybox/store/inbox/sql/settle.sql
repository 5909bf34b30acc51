-- name: inbox.settle.forget -> count
DELETE {from_rows} {pending_rows} WHERE {these}
