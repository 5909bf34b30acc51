-- name: inbox.adopt.columns -> rows
-- Of a table: its columns, whether each may be NULL, is unique alone, and has an index for the rows where it is NULL.
SELECT a.attname::text, format_type(coalesce(nullif(y.typbasetype, 0::oid), a.atttypid), NULL),
       NOT (a.attnotnull OR y.typnotnull), coalesce(i.alone, false), coalesce(i.leads, false), n.nspname::text,
       CASE WHEN a.atttypmod > 4 AND y.typcategory = 'S' THEN a.atttypmod - 4 END
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type y ON y.oid = a.atttypid
LEFT JOIN LATERAL (
  SELECT bool_or(x.indisunique AND x.indimmediate AND x.indpred IS NULL AND x.indnkeyatts = 1
                 AND x.indkey[0] = a.attnum) AS alone,
         bool_or(x.indkey[0] = a.attnum OR pg_get_expr(x.indpred, x.indrelid)
                 LIKE '%' || quote_ident(a.attname) || ' IS NULL%') AS leads
  FROM pg_index x WHERE x.indrelid = c.oid AND x.indisvalid) i ON true
WHERE c.relkind IN ('r', 'p') AND c.relname = :table::text AND n.nspname = coalesce(:schema::text, current_schema())
ORDER BY a.attnum

-- name: inbox.adopt.taken -> rows
-- What stands where the inbox's own relations will be.
SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = coalesce(nullif('{namespace}', ''), current_schema()) AND c.relname IN ('{message_name}', '{map_name}')

-- name: inbox.list -> rows
-- The relations of an inbox tell of it. Schema is NULL for the connection's own.
SELECT left(c.relname, -5)::text, nullif(n.nspname, current_schema())::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relname LIKE '%\_meta'::text
  AND (SELECT count(*) FROM pg_class o WHERE o.relnamespace = c.relnamespace AND o.relkind IN ('r', 'v')
         AND o.relname IN (left(c.relname, -5) || '_seen'::text, left(c.relname, -5) || '_done',
                           left(c.relname, -5) || '_migration')) = 3
ORDER BY 2 NULLS FIRST, 1
