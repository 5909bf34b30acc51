-- name: schema.applied -> rows
SELECT version, name, checksum, applied_at FROM {migration} ORDER BY version
