-- name: inbox.meta.lock -> rows
-- One writer at a time already.
SELECT 1
