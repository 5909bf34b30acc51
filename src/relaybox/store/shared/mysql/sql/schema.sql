-- name: schema.lock -> rows
-- Many processes may start at once: one migrates, the others wait and find nothing to do.
SELECT GET_LOCK({migration_lock}, 30)

-- name: schema.unlock -> rows
SELECT RELEASE_LOCK({migration_lock})

-- name: schema.exists -> rows
SELECT EXISTS (SELECT 1 FROM information_schema.tables
               WHERE table_schema = {database} AND table_name = '{migration_name}')

-- name: schema.namespace -> rows
SELECT EXISTS (SELECT 1 FROM information_schema.schemata WHERE schema_name = '{namespace}')

-- name: schema.drop_namespace -> count
DROP SCHEMA IF EXISTS `{namespace}`

-- name: schema.create -> count
CREATE TABLE IF NOT EXISTS {migration} (
  version integer PRIMARY KEY, name varchar(128) NOT NULL, checksum varchar(64) NOT NULL,
  applied_at datetime(6) NOT NULL)
ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin

-- name: schema.record -> count
INSERT INTO {migration} (version, name, checksum, applied_at)
VALUES (:version, :name, :checksum, utc_timestamp(6))

-- name: schema.seen -> rows
-- Whether this account sees whole tables. Of others the server hides each column that they are not granted.
SELECT EXISTS (SELECT 1 FROM information_schema.user_privileges WHERE privilege_type = 'SELECT')
    OR EXISTS (SELECT 1 FROM information_schema.schema_privileges
               WHERE table_schema = {database} AND privilege_type = 'SELECT')

-- name: schema.columns -> rows
-- What is really there, to compare with what the migrations make.
SELECT c.table_name, c.column_name, c.data_type FROM information_schema.columns c
WHERE c.table_schema = {database}
ORDER BY 1, 2

-- name: schema.indexes -> rows
SELECT DISTINCT table_name, index_name FROM information_schema.statistics
WHERE table_schema = {database}
ORDER BY 1, 2

-- name: schema.limits -> rows
SELECT constraint_name FROM information_schema.check_constraints
WHERE constraint_schema = {database} AND constraint_name LIKE '%\_limits'
