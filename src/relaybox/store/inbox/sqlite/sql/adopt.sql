-- name: inbox.adopt.columns -> rows
-- Of a table: its columns, whether each may be NULL, is unique alone, and has an index for the rows where it is NULL.
SELECT c.name, c.type, c."notnull" = 0 AND c.pk = 0,
       c.pk = 1 AND (SELECT count(*) FROM pragma_table_info(m.name) o WHERE o.pk > 0) = 1
         OR EXISTS (SELECT 1 FROM pragma_index_list(m.name) i WHERE i."unique" AND NOT i.partial
                    AND (SELECT count(*) FROM pragma_index_info(i.name)) = 1
                    AND (SELECT x.name FROM pragma_index_info(i.name) x) = c.name),
       EXISTS (SELECT 1 FROM pragma_index_list(m.name) i
               WHERE (SELECT x.name FROM pragma_index_info(i.name) x WHERE x.seqno = 0) = c.name
                  OR i.partial AND EXISTS (SELECT 1 FROM sqlite_master s WHERE s.name = i.name
                                           AND s.sql LIKE '%' || c.name || '%IS NULL%')),
       NULL, NULL
FROM sqlite_master m JOIN pragma_table_info(m.name) c
WHERE m.type = 'table' AND m.name = :table AND :schema IS NULL
ORDER BY c.cid

-- name: inbox.adopt.taken -> rows
-- What stands where the inbox's own relations will be.
SELECT name FROM sqlite_master WHERE name IN ('{message_name}', '{map_name}')

-- name: inbox.list -> rows
-- The tables of an inbox tell of it.
SELECT substr(m.name, 1, length(m.name) - 5), NULL FROM sqlite_master m
WHERE m.type = 'table' AND m.name LIKE '%!_meta' ESCAPE '!'
  AND (SELECT count(*) FROM sqlite_master o WHERE o.type = 'table'
         AND o.name IN (substr(m.name, 1, length(m.name) - 5) || '_seen', substr(m.name, 1, length(m.name) - 5) || '_done',
                        substr(m.name, 1, length(m.name) - 5) || '_migration')) = 3
ORDER BY 1
