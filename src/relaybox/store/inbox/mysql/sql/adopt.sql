-- name: inbox.adopt.columns -> rows
-- Of a table: its columns, whether each may be NULL, by which index it is unique alone, and leads one. The type with the character
-- set, because only the same one can be joined by an index.
SELECT c.column_name,
       concat(c.column_type, CASE WHEN c.character_set_name IS NULL OR c.data_type = 'json' THEN '' ELSE
              concat(' CHARACTER SET ', c.character_set_name, ' COLLATE ', c.collation_name) END),
       c.is_nullable = 'YES',
       (SELECT min(i.index_name) FROM information_schema.statistics i
               WHERE i.table_schema = c.table_schema AND i.table_name = c.table_name AND i.column_name = c.column_name
                 AND i.non_unique = 0 AND i.sub_part IS NULL
                 AND (SELECT count(*) FROM information_schema.statistics o
                      WHERE o.table_schema = i.table_schema AND o.table_name = i.table_name
                        AND o.index_name = i.index_name) = 1),
       EXISTS (SELECT 1 FROM information_schema.statistics i
               WHERE i.table_schema = c.table_schema AND i.table_name = c.table_name AND i.column_name = c.column_name
                 AND i.seq_in_index = 1),
       c.table_schema,
       CASE WHEN c.data_type IN ('varchar', 'char') THEN c.character_maximum_length
            ELSE CAST(floor(c.character_octet_length / 4) AS signed) END
FROM information_schema.columns c JOIN information_schema.tables t
  ON t.table_schema = c.table_schema AND t.table_name = c.table_name AND t.table_type = 'BASE TABLE'
WHERE c.table_name = :table AND c.table_schema = coalesce(:schema, database())
ORDER BY c.ordinal_position

-- name: inbox.adopt.taken -> rows
-- What stands where the inbox's own relation will be. A view with a map is of an adoption that was cut, and goes on.
SELECT t.table_name FROM information_schema.tables t
LEFT JOIN information_schema.tables m ON m.table_schema = t.table_schema AND m.table_name = '{map_name}'
WHERE t.table_schema = {database} AND t.table_name = '{message_name}'
  AND (t.table_type = 'BASE TABLE' OR m.table_name IS NULL)

-- name: inbox.list -> rows
-- The tables of an inbox tell of it.
SELECT left(c.table_name, char_length(c.table_name) - 5), NULL
FROM information_schema.tables c
WHERE c.table_schema = database() AND c.table_type = 'BASE TABLE' AND c.table_name LIKE '%!_meta' ESCAPE '!'
  AND (SELECT count(*) FROM information_schema.tables o WHERE o.table_schema = c.table_schema AND o.table_name IN (
         concat(left(c.table_name, char_length(c.table_name) - 5), '_seen'),
         concat(left(c.table_name, char_length(c.table_name) - 5), '_done'),
         concat(left(c.table_name, char_length(c.table_name) - 5), '_migration'))) = 3
ORDER BY 1
