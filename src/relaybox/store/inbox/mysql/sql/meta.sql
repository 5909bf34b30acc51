-- name: inbox.meta.lock -> count
-- Serialises those that change what all agree on, by a row.
INSERT INTO {meta} (name, value) VALUES ('lock', '1') ON DUPLICATE KEY UPDATE value = '1'
