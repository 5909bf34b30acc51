-- name: schema.lock -> count
-- Many processes may start at once: one migrates, the others wait and find nothing to do. The lock is on the table of the
-- migrations, which no other role can take; who makes that table is waited for by others that would make it. A migration
-- may take longer than any other transaction of ours.
DO $$
BEGIN
  IF current_setting('server_version_num')::integer >= 170000 THEN
    PERFORM set_config('transaction_timeout', '0', true);
  END IF;
  LOOP
    BEGIN
      IF '{namespace}' <> '' AND NOT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = '{namespace}') THEN
        EXECUTE format('CREATE SCHEMA %I', '{namespace}');
      END IF;
      IF to_regclass('{migration}') IS NULL THEN
        {make_migration};
      END IF;
      LOCK TABLE {migration} IN SHARE ROW EXCLUSIVE MODE;
      EXIT;
    EXCEPTION WHEN unique_violation OR duplicate_schema OR duplicate_table OR undefined_table THEN
    END;
  END LOOP;
END $$

-- name: schema.exists -> rows
SELECT to_regclass('{migration}') IS NOT NULL

-- name: schema.namespace -> rows
SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = '{namespace}')

-- name: schema.drop_namespace -> count
DROP SCHEMA IF EXISTS "{namespace}" CASCADE

-- slot: make_migration
CREATE TABLE IF NOT EXISTS {migration} (
  version integer PRIMARY KEY, name text NOT NULL, checksum text NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp())

-- name: schema.create -> count
{make_migration}

-- slot: record_migration
INSERT INTO {migration} (version, name, checksum) VALUES (:version, :name, :checksum)

-- name: schema.record -> count
{record_migration}

-- name: schema.unless -> count
-- Of a script that is run elsewhere: a migration, unless it has been applied there. Its values are written into it.
DO $relaybox$
DECLARE
  step text;
BEGIN
  IF NOT EXISTS (SELECT 1 FROM {migration} WHERE version = :version) THEN
    FOREACH step IN ARRAY :steps LOOP
      EXECUTE step;
    END LOOP;
    {record_migration};
  END IF;
END $relaybox$

-- name: schema.columns -> rows
-- What is really there, to compare with what the migrations make. information_schema shows what a role has rights on.
SELECT c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = coalesce(nullif('{namespace}', ''), current_schema()))
  AND c.relkind IN ('r', 'p', 'v') AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY 1, 2

-- name: schema.indexes -> rows
SELECT tablename, indexname FROM pg_indexes
WHERE schemaname = coalesce(nullif('{namespace}', ''), current_schema())
ORDER BY 1, 2

-- name: schema.limits -> rows
SELECT conname FROM pg_constraint
WHERE contype = 'c' AND conname LIKE '%\_limits'::text
  AND connamespace = (SELECT oid FROM pg_namespace WHERE nspname = coalesce(nullif('{namespace}', ''), current_schema()))
