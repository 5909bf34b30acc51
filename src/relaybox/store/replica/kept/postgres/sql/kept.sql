-- name: kept.delete -> count
DELETE FROM {kept} AS t USING {beside} v WHERE v.relaybox_gone = 1 AND {same}

-- name: kept.columns -> rows
-- Name, type to read text as, type as declared, its kind, digits behind the point, and whether a row may leave it out and
-- may have it.
SELECT a.attname::text, format_type(a.atttypid, NULL),
       format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attcollation <> t.typcollation
         THEN ' COLLATE ' || a.attcollation::regcollation::text ELSE '' END,
       CASE WHEN b.typname IN ('json', 'jsonb') THEN 'json' WHEN b.typcategory = 'A' THEN 'array'
            WHEN b.typname = 'numeric' THEN 'number' WHEN b.typname = 'float8' THEN 'float' ELSE 'text' END,
       CASE WHEN b.typname = 'numeric' AND a.atttypmod >= 4 THEN (((a.atttypmod - 4) & 2047) # 1024) - 1024 END,
       NOT a.attnotnull OR a.atthasdef OR a.attidentity <> '', a.attgenerated = '' AND a.attidentity <> 'a'
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
WHERE a.attrelid = to_regclass('{kept}') AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum

-- name: kept.unique -> rows
-- Each unique index, and its columns; NULL for an expression, and for one that is for some rows only.
SELECT c.relname::text, CASE WHEN i.indpred IS NULL AND i.indimmediate THEN a.attname::text END
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
CROSS JOIN LATERAL unnest(i.indkey::smallint[]) WITH ORDINALITY AS k(attnum, ord)
LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = to_regclass('{kept}') AND i.indisunique AND k.ord <= i.indnkeyatts ORDER BY 1, k.ord

-- slot: made_so
