-- name: kept.upsert -> count
-- Never REPLACE: rows of other tables may go with a row that is deleted.
INSERT INTO {kept} ({columns}) SELECT {cells} FROM {rows} ON DUPLICATE KEY UPDATE {updates}

-- name: kept.note -> count
-- Within a version a row that came is not gone, whichever of the two is noted first. The order of the assignments matters.
INSERT INTO {beside} ({key}, relaybox_n, relaybox_gone, relaybox_snapshot)
SELECT {key_cells}, :n, :gone, :snapshot FROM {key_rows}
ON DUPLICATE KEY UPDATE
  relaybox_gone = CASE WHEN relaybox_n = VALUES(relaybox_n) AND relaybox_gone = 0 THEN 0 ELSE VALUES(relaybox_gone) END,
  relaybox_n = VALUES(relaybox_n), relaybox_snapshot = VALUES(relaybox_snapshot)

-- name: kept.delete -> count
DELETE t FROM {beside} v STRAIGHT_JOIN {kept} t ON {same} WHERE v.relaybox_gone = 1

-- name: kept.sweep -> count
-- Rows that no row of the snapshot is, and no later message has made.
DELETE t FROM {kept} t
LEFT JOIN {beside} v ON {same} AND (v.relaybox_snapshot = :snapshot OR v.relaybox_n > :snapshot)
WHERE v.relaybox_n IS NULL

-- name: kept.columns -> rows
-- Name, type to read text as, type as declared, its kind, digits behind the point, and whether a row may leave it out and
-- may have it; how two values of it are compared.
SELECT c.column_name, c.data_type,
       concat(c.column_type, CASE WHEN c.collation_name IS NULL THEN ''
                                  ELSE concat(' CHARACTER SET ', c.character_set_name, ' COLLATE ', c.collation_name) END),
       CASE WHEN c.data_type = 'json' THEN 'json'
            WHEN c.data_type IN ('decimal', 'tinyint', 'smallint', 'mediumint', 'int', 'bigint') THEN 'number'
            WHEN c.data_type = 'double' THEN 'float'
            WHEN c.data_type = 'date' THEN 'date' WHEN c.data_type IN ('datetime', 'timestamp', 'time') THEN 'time'
            WHEN c.data_type LIKE '%blob' OR c.data_type LIKE '%binary' THEN 'bytes' ELSE 'text' END,
       coalesce(c.datetime_precision, c.numeric_scale),
       c.is_nullable = 'YES' OR c.column_default IS NOT NULL OR c.extra LIKE '%auto_increment%',
       c.extra NOT LIKE '%GENERATED%' OR c.extra LIKE '%DEFAULT_GENERATED%', '='
FROM information_schema.columns c
WHERE c.table_schema = {database} AND c.table_name = '{kept_name}' ORDER BY c.ordinal_position

-- name: kept.unique -> rows
-- Each unique index, its columns (NULL for an expression, and for a part of one), and whether it tells every two texts
-- apart.
SELECT s.index_name, CASE WHEN s.sub_part IS NULL THEN s.column_name END,
       coalesce(c.collation_name LIKE '%nopad_bin' OR c.collation_name LIKE '%0900_bin', 1)
FROM information_schema.statistics s
LEFT JOIN information_schema.columns c
  ON c.table_schema = s.table_schema AND c.table_name = s.table_name AND c.column_name = s.column_name
WHERE s.table_schema = {database} AND s.table_name = '{kept_name}' AND s.non_unique = 0 ORDER BY 1, s.seq_in_index

-- name: kept.collation -> rows
-- One that tells every two texts apart, also those that end in different spaces: its name differs between servers.
SELECT c.collation_name FROM information_schema.collations c
WHERE c.collation_name IN ('utf8mb4_nopad_bin', 'utf8mb4_0900_bin') ORDER BY 1 DESC LIMIT 1

-- slot: made_so
ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4
