-- What a maintainer needs to refresh feeds, beyond our own tables.

-- name: grants.feeds -> rows
-- Kept tables, changes that wait, views, and what their queries read: held means that the current role may do so already.
SELECT DISTINCT 'table', format('%I.%I', n.nspname, c.relname), o.privileges,
       (SELECT bool_and(has_table_privilege(c.oid, p)) FROM unnest(string_to_array(o.privileges, ', ')) AS p)
FROM {feed} f JOIN {schedule} s ON s.feed_id = f.id CROSS JOIN LATERAL (
  SELECT to_regclass(f.relation)::oid AS id, 'SELECT, INSERT, UPDATE, DELETE' AS privileges
  UNION ALL SELECT to_regclass(f.query_view)::oid, 'SELECT'
  UNION ALL SELECT to_regclass(r.touched)::oid, 'SELECT, DELETE' FROM {source} r WHERE r.feed_id = f.id
  UNION ALL SELECT to_regclass(r.scopes)::oid, 'SELECT' FROM {source} r WHERE r.feed_id = f.id
  UNION ALL SELECT u.id::oid, 'SELECT' FROM unnest(f.reads) AS u(id)) o
JOIN pg_class c ON c.oid = o.id JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE s.every IS NOT NULL
UNION ALL
SELECT DISTINCT 'schema', quote_ident(n.nspname), 'USAGE', has_schema_privilege(n.oid, 'USAGE')
FROM {feed} f JOIN {schedule} s ON s.feed_id = f.id
CROSS JOIN LATERAL unnest(f.reads || to_regclass(f.relation)) AS u(id)
JOIN pg_class c ON c.oid = u.id JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE s.every IS NOT NULL
ORDER BY 1, 2

-- name: grants.fed -> rows
-- The topics into whose logs such feeds write.
SELECT DISTINCT f.topic_id FROM {feed} f JOIN {schedule} s ON s.feed_id = f.id WHERE s.every IS NOT NULL
