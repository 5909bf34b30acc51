-- name: instance.beat -> count
-- Zero rows: somebody declared us dead. Our claims are gone; register anew. (Counts rows found, not rows
-- changed: our connections set CLIENT_FOUND_ROWS.)
UPDATE {instance}
SET expires_at = {clock} + {ttl}
WHERE id = :id

-- name: instance.probe -> rows
-- Its own row, asked for in two sessions at once.
SELECT id, {session} FROM {instance} WHERE id = :id {skip_locked}

-- name: instance.note -> count
UPDATE {instance} SET note = :note WHERE id = :id

-- name: instance.leave -> count
DELETE FROM {instance} WHERE id = :id

-- name: instance.expired -> rows
-- The dead, one remover each. Never who asks: it lives, however late it is. Who is :alone removes everybody else: a
-- single node frees everything that is not its own when it starts.
SELECT id FROM {instance}
WHERE id <> coalesce(:me, 0) AND (:alone OR expires_at < {clock})
{skip_locked}

-- name: instance.live -> rows
SELECT id, name, role, started_at, expires_at, note FROM {instance}
WHERE expires_at >= {clock} ORDER BY started_at, id
