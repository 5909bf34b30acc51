-- name: schema.applied -> rows
SELECT version, name, checksum, applied_at FROM {migration} ORDER BY version

-- name: schema.server -> rows
SELECT {server_version}

-- name: schema.probe -> rows
-- A row that is there, asked for in two sessions at once: who gets what another has locked passes over nothing.
SELECT version, {session} FROM {migration} WHERE version = :version {skip_locked}
