-- name: instance.register -> count
INSERT OR IGNORE INTO {instance} (id, name, role, started_at, expires_at)
VALUES (:id, :name, :role, {clock}, {clock} + {ttl})

-- name: instance.remove -> count
DELETE FROM {instance} WHERE id {in_owners}
