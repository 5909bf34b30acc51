-- name: inbox.meta.lock -> count
-- Serialises those that change what all agree on. No advisory lock: any role of the database could hold that.
LOCK TABLE {meta} IN SHARE ROW EXCLUSIVE MODE
