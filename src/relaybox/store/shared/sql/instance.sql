-- name: instance.beat -> count
-- Zero rows: somebody declared us dead. Our claims are gone; register anew. (Counts rows found, not rows
-- changed: our connections set CLIENT_FOUND_ROWS.)
UPDATE {instance}
SET expires_at = {clock} + {ttl}
WHERE id = :id

-- name: instance.note -> count
UPDATE {instance} SET note = :note WHERE id = :id

-- name: instance.leave -> count
DELETE FROM {instance} WHERE id = :id

-- name: instance.expired -> rows
-- The dead, one remover each; with a survivor everybody else: a single node frees everything that is not
-- its own when it starts.
SELECT id FROM {instance}
WHERE CASE WHEN :survivor IS NULL THEN expires_at < {clock} ELSE id <> :survivor END
{skip_locked}

-- name: instance.live -> rows
SELECT id, name, role, started_at, expires_at, note FROM {instance}
WHERE expires_at >= {clock} ORDER BY started_at, id
