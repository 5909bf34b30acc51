-- name: instance.register -> count
INSERT INTO {instance} (id, name, role, started_at, expires_at) OVERRIDING SYSTEM VALUE
VALUES (:id, :name, :role, {clock}, {clock} + {ttl})
ON CONFLICT (id) DO NOTHING

-- name: instance.expired -> rows
-- Removes the dead, one remover each (SKIP LOCKED), and names them. With a :survivor everybody else counts
-- as dead: a single node frees everything that is not its own when it starts.
DELETE FROM {instance}
WHERE id IN (
  SELECT id FROM {instance}
  WHERE CASE WHEN :survivor::integer IS NULL THEN expires_at < {clock}
             ELSE id <> :survivor::integer END
  {skip_locked})
RETURNING id

-- name: instance.notify -> rows
-- Only when somebody is there to hear it; no row means nobody is.
SELECT pg_notify('{channel}', '')
FROM (SELECT 1 FROM {instance} WHERE expires_at >= {clock} LIMIT 1) AS listener
