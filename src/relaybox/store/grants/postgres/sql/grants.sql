-- name: grants.schema -> count
GRANT USAGE ON SCHEMA {object} TO {role}

-- name: grants.table -> count
GRANT {privileges} ON {object} TO {role}

-- name: grants.sequence -> count
GRANT {privileges} ON SEQUENCE {object} TO {role}

-- name: grants.function -> count
GRANT EXECUTE ON FUNCTION {object} TO {role}

-- name: grants.revoke -> count
REVOKE {privileges} ON {object} FROM {role}

-- name: grants.write -> count
-- What a role calls that may write events and nothing else. It runs with the rights of who makes it, and looks nowhere but
-- into the server's own schema. {body} is the statement by which everybody writes.
CREATE OR REPLACE FUNCTION {object} RETURNS SETOF bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $relaybox$
{body}
$relaybox$

-- name: grants.private -> count
REVOKE ALL ON FUNCTION {object} FROM PUBLIC

-- name: grants.home -> rows
-- The schema of the tables, and whose session this is.
SELECT n.nspname::text, current_user::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass('{table}')

-- name: grants.held -> rows
-- What the current role may do with each column of these tables, and with each as a whole (column '').
SELECT c.relname::text, a.attname::text, p.privilege, has_column_privilege(c.oid, a.attnum, p.privilege)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE']) AS p(privilege)
WHERE n.nspname = :schema::text AND c.relname = ANY(:tables::text[]) AND a.attnum > 0 AND NOT a.attisdropped
  AND c.relkind <> 'S'
UNION ALL
SELECT c.relname::text, '', p.privilege, has_sequence_privilege(c.oid, p.privilege)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN unnest(ARRAY['USAGE', 'SELECT', 'UPDATE']) AS p(privilege)
WHERE n.nspname = :schema::text AND c.relname = ANY(:tables::text[]) AND c.relkind = 'S'
UNION ALL
SELECT c.relname::text, '', p.privilege, has_table_privilege(c.oid, p.privilege)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN unnest(ARRAY['DELETE', 'TRUNCATE']) AS p(privilege)
WHERE n.nspname = :schema::text AND c.relname = ANY(:tables::text[]) AND c.relkind IN ('r', 'p', 'v')
ORDER BY 1, 2, 3

-- name: grants.open -> rows
-- Schemas of the search_path in which any role may make objects.
SELECT n.nspname::text FROM pg_namespace n
WHERE n.nspname = ANY(current_schemas(false)) AND has_schema_privilege('public', n.oid, 'CREATE') ORDER BY 1

-- name: grants.schemas -> rows
-- The database, if any role may make a schema in it that the search_path of this one would look into first.
SELECT current_database()::text
WHERE has_database_privilege('public', current_database(), 'CREATE')
  AND current_setting('search_path') LIKE '%"$user"%'::text

-- name: grants.callable -> rows
SELECT has_function_privilege(p.oid, 'EXECUTE') FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = :schema::text AND p.proname = :function::name
