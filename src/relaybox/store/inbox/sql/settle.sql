-- name: inbox.settle.forget -> count
DELETE {from_rows} {pending_rows} WHERE {these}

-- name: inbox.settle.tokens -> rows
SELECT t.seq, t.token FROM {pending_rows} WHERE {these}
