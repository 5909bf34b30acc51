-- name: instance.register -> count
INSERT INTO {instance} (id, name, role, started_at, expires_at) OVERRIDING SYSTEM VALUE
VALUES (:id, :name, :role, {clock}, {clock} + {ttl})
ON CONFLICT (id) DO NOTHING

-- name: instance.expired -> rows
-- Removes the dead, one remover each (SKIP LOCKED), and names them. Never who asks: it lives, however late it is.
-- Who is :alone removes everybody else: a single node frees everything that is not its own when it starts.
DELETE FROM {instance}
WHERE id IN (
  SELECT id FROM {instance}
  WHERE id <> coalesce(:me::integer, 0) AND (:alone OR expires_at < {clock})
  {skip_locked})
RETURNING id

-- name: instance.notify -> rows
-- Only when somebody is there to hear it; no row means nobody is.
SELECT pg_notify('{channel}', '')
FROM (SELECT 1 FROM {instance} WHERE expires_at >= {clock} LIMIT 1) AS listener
