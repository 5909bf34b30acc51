-- name: kept.delete -> count
DELETE FROM {kept} AS t USING {beside} v WHERE v.relaybox_gone = 1 AND {same}

-- name: kept.columns -> rows
-- Name, type to read text as, type as declared, its kind, digits behind the point, and whether a row may leave it out and
-- may have it; how two values of it are compared. The type of any length: a cast to a shorter one cuts without a word. The
-- operator is that of its index, not what the session finds by the name `=`.
SELECT a.attname::text, format_type(a.atttypid, -1),
       format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attcollation <> t.typcollation
         THEN ' COLLATE ' || a.attcollation::regcollation::text ELSE '' END,
       CASE WHEN b.typname IN ('json', 'jsonb') THEN 'json' WHEN b.typcategory = 'A' THEN 'array'
            WHEN b.typname = 'numeric' THEN 'number' WHEN b.typname = 'float8' THEN 'float'
            WHEN b.typname = 'date' THEN 'date' WHEN b.typcategory = 'D' THEN 'time' ELSE 'text' END,
       CASE WHEN b.typname = 'numeric' AND a.atttypmod >= 4 THEN (((a.atttypmod - 4) & 2047) # 1024) - 1024
            WHEN b.typcategory = 'D' AND a.atttypmod >= 0 THEN a.atttypmod END,
       NOT a.attnotnull OR a.atthasdef OR a.attidentity <> '', a.attgenerated = '' AND a.attidentity <> 'a',
       coalesce((SELECT format('OPERATOR(%I.%s)', s.nspname, o.oprname)
                 FROM pg_opclass k JOIN pg_am m ON m.oid = k.opcmethod AND m.amname = 'btree'
                 JOIN pg_amop p ON p.amopfamily = k.opcfamily AND p.amoplefttype = k.opcintype
                                   AND p.amoprighttype = k.opcintype AND p.amopstrategy = 3
                 JOIN pg_operator o ON o.oid = p.amopopr JOIN pg_namespace s ON s.oid = o.oprnamespace
                 WHERE k.opcintype = b.oid AND k.opcdefault), 'OPERATOR(pg_catalog.=)')
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
WHERE a.attrelid = to_regclass('{kept}') AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum

-- name: kept.unique -> rows
-- Each unique index, its columns (NULL for an expression, and for one that is for some rows only), and whether it tells
-- every two texts apart.
SELECT c.relname::text, CASE WHEN i.indpred IS NULL AND i.indimmediate THEN a.attname::text END,
       t.typname IS DISTINCT FROM 'citext' AND coalesce(o.collisdeterministic, true)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
CROSS JOIN LATERAL unnest(i.indkey::smallint[], i.indcollation::oid[]) WITH ORDINALITY AS k(attnum, sorted, ord)
LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
LEFT JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_collation o ON o.oid = k.sorted
WHERE i.indrelid = to_regclass('{kept}') AND i.indisunique AND k.ord <= i.indnkeyatts ORDER BY 1, k.ord

-- slot: made_so
