-- name: instance.register -> count
INSERT INTO {instance} (id, name, role, started_at, expires_at) OVERRIDING SYSTEM VALUE
VALUES (:id, :name, :role, coalesce(:now, clock_timestamp()),
        coalesce(:now, clock_timestamp()) + make_interval(secs => :ttl::float8))
ON CONFLICT (id) DO NOTHING

-- name: instance.beat -> count
-- Zero rows: somebody declared us dead. Our claims are gone; register anew.
UPDATE {instance}
SET expires_at = coalesce(:now, clock_timestamp()) + make_interval(secs => :ttl::float8)
WHERE id = :id

-- name: instance.note -> count
UPDATE {instance} SET note = :note WHERE id = :id

-- name: instance.leave -> count
DELETE FROM {instance} WHERE id = :id

-- name: instance.expired -> rows
-- Removes the dead, one remover each (SKIP LOCKED), and names them. With a :survivor everybody else counts
-- as dead: a single node frees everything that is not its own when it starts.
DELETE FROM {instance}
WHERE id IN (
  SELECT id FROM {instance}
  WHERE CASE WHEN :survivor::integer IS NULL THEN expires_at < coalesce(:now, clock_timestamp())
             ELSE id <> :survivor::integer END
  FOR UPDATE SKIP LOCKED)
RETURNING id

-- name: instance.live -> rows
SELECT id, name, role, started_at, expires_at, note FROM {instance}
WHERE expires_at >= coalesce(:now, clock_timestamp()) ORDER BY started_at, id

-- name: instance.notify -> rows
-- Only when somebody is there to hear it; no row means nobody is.
SELECT pg_notify('{channel}', '')
FROM (SELECT 1 FROM {instance} WHERE expires_at >= coalesce(:now, clock_timestamp()) LIMIT 1) AS listener
