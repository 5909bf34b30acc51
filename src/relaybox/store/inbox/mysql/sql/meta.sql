-- name: inbox.meta.lock -> count
-- Serialises those that change what all agree on, by a row.
INSERT INTO {meta} (name, value) VALUES ('lock', '1') ON DUPLICATE KEY UPDATE value = '1'

-- name: inbox.meta.list -> rows
SELECT name, value FROM {meta}

-- name: inbox.meta.put -> count
INSERT INTO {meta} (name, value) VALUES (:name, :value)

-- name: inbox.meta.remove -> count
DELETE FROM {meta} WHERE name = :name
