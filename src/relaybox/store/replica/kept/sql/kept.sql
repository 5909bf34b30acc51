-- A replicated table, {kept}, and beside it {beside}: keys of its rows, and what is known of them.
--
--   while a delta with deleted rows is applied    those keys, gone = 1 until an inserted row has the same
--   while all rows are copied                     the keys of the copy
--   while messages of single rows come            the version of each row, also of deleted ones
--
-- Compiled for one table: {cells} reads the columns of what is sent as {rows}, {key_cells} those of the key as {key_rows}.

-- name: kept.create -> count
CREATE TABLE {kept} ({definitions}, PRIMARY KEY ({key})) {made_so}

-- name: kept.beside -> count
CREATE TABLE {beside} (
  {definitions}, relaybox_n bigint NOT NULL, relaybox_gone smallint NOT NULL, relaybox_snapshot bigint NOT NULL,
  PRIMARY KEY ({key})) {made_so}

-- name: kept.drop_beside -> count
DROP TABLE IF EXISTS {beside}

-- name: kept.upsert -> count
-- Never DELETE and INSERT: rows of other tables may go with a row that is deleted.
INSERT INTO {kept} ({columns}) SELECT {cells} FROM {rows} WHERE true ON CONFLICT ({key}) DO UPDATE SET {updates}

-- name: kept.note -> count
-- Within a version a row that came is not gone, whichever of the two is noted first.
INSERT INTO {beside} AS b ({key}, relaybox_n, relaybox_gone, relaybox_snapshot)
SELECT {key_cells}, :n::bigint, :gone::smallint, :snapshot::bigint FROM {key_rows} WHERE true
ON CONFLICT ({key}) DO UPDATE SET
  relaybox_gone = CASE WHEN b.relaybox_n = excluded.relaybox_n AND b.relaybox_gone = 0 THEN 0 ELSE excluded.relaybox_gone END,
  relaybox_n = excluded.relaybox_n, relaybox_snapshot = excluded.relaybox_snapshot

-- name: kept.noted -> rows
-- FOR UPDATE, here and below: what is committed now, also in a transaction of a caller's that sees a moment before.
SELECT relaybox_n, relaybox_gone, relaybox_snapshot FROM {beside} WHERE {key_is} {for_update}

-- name: kept.clear -> count
DELETE FROM {beside} WHERE relaybox_n <= :n

-- name: kept.remove -> count
DELETE FROM {kept} WHERE {key_is}

-- name: kept.sweep -> count
-- Rows that no row of the snapshot is, and no later message has made.
DELETE FROM {kept} AS t
WHERE NOT EXISTS (SELECT 1 FROM {beside} v
                  WHERE {same} AND (v.relaybox_snapshot = :snapshot::bigint OR v.relaybox_n > :snapshot::bigint))

-- name: kept.some -> rows
SELECT 1 FROM {kept} LIMIT 1 {for_update}
