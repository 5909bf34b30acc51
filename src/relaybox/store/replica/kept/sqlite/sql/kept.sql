-- name: kept.delete -> count
DELETE FROM {kept} WHERE ({key}) IN (SELECT {key} FROM {beside} WHERE relaybox_gone = 1)

-- name: kept.columns -> rows
-- Name, type to read text as, type as declared, its kind by the type's affinity, digits behind the point, and whether a row
-- may leave it out and may have it; how two values of it are compared.
SELECT c.name, c.type, c.type,
       CASE WHEN upper(c.type) LIKE '%INT%' THEN 'number'
            WHEN upper(c.type) LIKE '%CHAR%' OR upper(c.type) LIKE '%CLOB%' OR upper(c.type) LIKE '%TEXT%' THEN 'text'
            WHEN upper(c.type) LIKE '%BLOB%' THEN 'bytes' WHEN upper(c.type) LIKE '%JSON%' THEN 'json'
            WHEN c.type = '' THEN 'text' ELSE 'float' END,
       CASE WHEN upper(c.type) LIKE '%INT%' THEN 0 END,
       c."notnull" = 0 OR c.dflt_value IS NOT NULL OR c.pk > 0, c.hidden = 0, '='
FROM pragma_table_xinfo('{kept_name}') c ORDER BY c.cid

-- name: kept.unique -> rows
-- Each unique index, its columns (NULL for an expression, and for one that is for some rows only), and whether it tells
-- every two texts apart.
SELECT i.name, CASE WHEN i.partial = 0 THEN k.name END, k.coll = 'BINARY'
FROM pragma_index_list('{kept_name}') i JOIN pragma_index_xinfo(i.name) k WHERE i."unique" = 1 AND k.key = 1
UNION ALL
SELECT 'rowid', c.name, 1 FROM pragma_table_info('{kept_name}') c
WHERE c.pk > 0 AND NOT EXISTS (SELECT 1 FROM pragma_index_list('{kept_name}') i WHERE i.origin = 'pk')
ORDER BY 1

-- slot: made_so
