-- name: inbox.meta.lock -> rows
-- One writer at a time already.
SELECT 1

-- name: inbox.meta.list -> rows
SELECT name, value FROM {meta}

-- name: inbox.meta.put -> count
INSERT INTO {meta} (name, value) VALUES (:name, :value)

-- name: inbox.meta.remove -> count
DELETE FROM {meta} WHERE name = :name
