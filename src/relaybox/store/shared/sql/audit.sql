-- name: audit.write -> count
INSERT INTO {audit} (at, actor, verb, what, changed, reason)
VALUES ({clock}, :actor, :verb, :what, :changed, :reason)

-- name: audit.number -> rows
-- Of the row that this session has just written.
SELECT {last_number}

-- name: audit.add -> count
UPDATE {audit} SET changed = changed + :changed WHERE id = :id

-- name: audit.list -> rows
SELECT id, at, actor, verb, what, changed, reason FROM {audit}
WHERE (:before::bigint IS NULL OR id < :before) ORDER BY id DESC LIMIT :limit

-- name: audit.purge -> count
DELETE FROM {audit} WHERE at < {ttl_ago}
