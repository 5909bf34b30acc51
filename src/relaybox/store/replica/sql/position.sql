-- slot: place
p.feed, p.key_columns, p.types, p.epoch, p.n, p.seq, p.era, p.by_rows, p.snapshot, p.arrived, p.applied_at

-- name: replica.find -> rows
SELECT {place} FROM {position} p WHERE p.kept = :kept

-- name: replica.lock -> rows
-- Two that apply to one table do so one after another.
SELECT {place} FROM {position} p WHERE p.kept = :kept {for_update}

-- name: replica.take -> rows
-- Who finds it locked leaves it to the other.
SELECT {place} FROM {position} p WHERE p.kept = :kept {skip_locked}

-- name: replica.forget -> count
DELETE FROM {position} WHERE kept = :kept

-- name: replica.begin -> count
INSERT INTO {position} (kept, feed, key_columns, types, n, era, by_rows, snapshot, arrived)
VALUES (:kept, :feed, :key_columns, :types, 0, 0, 0, 0, 0)

-- name: replica.move -> count
UPDATE {position} SET epoch = :epoch, n = :n::bigint, seq = :seq::bigint, era = :era::bigint, by_rows = :by_rows::smallint,
                      snapshot = :snapshot::bigint, arrived = :arrived::bigint, applied_at = {clock}
WHERE kept = :kept
