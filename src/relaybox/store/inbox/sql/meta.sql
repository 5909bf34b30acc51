-- name: inbox.meta.list -> rows
SELECT name, value FROM {meta}

-- name: inbox.meta.put -> count
INSERT INTO {meta} (name, value) VALUES (:name, :value)

-- name: inbox.meta.remove -> count
DELETE FROM {meta} WHERE name = :name
