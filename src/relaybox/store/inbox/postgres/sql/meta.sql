-- name: inbox.meta.lock -> rows
-- Serialises those that change what all agree on.
SELECT pg_advisory_xact_lock(hashtextextended('{meta}', 0)) IS NULL

-- name: inbox.meta.list -> rows
SELECT name, value FROM {meta}

-- name: inbox.meta.put -> count
INSERT INTO {meta} (name, value) VALUES (:name, :value)

-- name: inbox.meta.remove -> count
DELETE FROM {meta} WHERE name = :name
