-- name: instance.register -> count
INSERT IGNORE INTO {instance} (id, name, role, started_at, expires_at)
VALUES (:id, :name, :role, {clock}, {clock} + {ttl})

-- name: instance.remove -> count
DELETE i FROM JSON_TABLE(:owners, '$[*]' COLUMNS (id bigint PATH '$')) s STRAIGHT_JOIN {instance} i ON i.id = s.id
