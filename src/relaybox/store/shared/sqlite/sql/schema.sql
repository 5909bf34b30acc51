-- name: schema.lock -> rows
-- BEGIN IMMEDIATE is the lock: one migrates, the others wait and find nothing to do.
SELECT 1

-- name: schema.exists -> rows
SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '{migration_name}')

-- name: schema.create -> count
CREATE TABLE IF NOT EXISTS {migration} (
  version integer PRIMARY KEY, name varchar(128) NOT NULL, checksum varchar(64) NOT NULL,
  applied_at integer NOT NULL)

-- name: schema.record -> count
INSERT INTO {migration} (version, name, checksum, applied_at)
VALUES (:version, :name, :checksum,
        CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS integer) * 1000)

-- name: schema.columns -> rows
-- What is really there, to compare with what the migrations make.
SELECT m.name, c.name, c.type FROM sqlite_master m JOIN pragma_table_info(m.name) c
WHERE m.type = 'table'
ORDER BY 1, 2

-- name: schema.indexes -> rows
SELECT tbl_name, name FROM sqlite_master
WHERE type = 'index'
ORDER BY 1, 2

-- name: schema.limits -> rows
-- A constraint is a part of its table's text.
SELECT sql FROM sqlite_master WHERE type = 'table' AND sql LIKE '%\_limits CHECK%' ESCAPE '\'
