-- name: schema.lock -> rows
-- Many processes may start at once: one migrates, the others wait and find nothing to do. A migration may take
-- longer than any other transaction of ours.
SELECT pg_advisory_xact_lock(hashtextextended('relaybox.migrate.{namespace}.{event_name}', 0)),
       CASE WHEN current_setting('server_version_num')::integer >= 170000
            THEN set_config('transaction_timeout', '0', true) END

-- name: schema.exists -> rows
SELECT to_regclass('{migration}') IS NOT NULL

-- name: schema.namespace -> rows
SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = '{namespace}')

-- name: schema.create -> count
CREATE TABLE IF NOT EXISTS {migration} (
  version integer PRIMARY KEY, name varchar(128) NOT NULL, checksum varchar(64) NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp())

-- name: schema.record -> count
INSERT INTO {migration} (version, name, checksum) VALUES (:version, :name, :checksum)

-- name: schema.columns -> rows
-- What is really there, to compare with what the migrations make.
SELECT c.table_name, c.column_name, c.data_type FROM information_schema.columns c
WHERE c.table_schema = coalesce(nullif('{namespace}', ''), current_schema())
ORDER BY 1, 2

-- name: schema.indexes -> rows
SELECT tablename, indexname FROM pg_indexes
WHERE schemaname = coalesce(nullif('{namespace}', ''), current_schema())
ORDER BY 1, 2

-- name: schema.limits -> rows
SELECT conname FROM pg_constraint
WHERE contype = 'c' AND conname LIKE '%\_limits'
  AND connamespace = (SELECT oid FROM pg_namespace WHERE nspname = coalesce(nullif('{namespace}', ''), current_schema()))
