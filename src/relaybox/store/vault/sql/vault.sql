-- slot: key_columns
id, subject, master, wrapped, created_at, erased_at

-- name: vault.read -> rows
SELECT {key_columns} FROM {data_key} WHERE id {in_keys}

-- name: vault.find -> rows
-- The newest come last. A key that is too old encrypts nothing new: one key must not encrypt too much.
SELECT {key_columns} FROM {data_key}
WHERE subject {in_keys} AND erased_at IS NULL AND created_at > {ttl_ago}
ORDER BY id

-- name: vault.insert -> count
-- In the transaction of the event. No name is unique but the id, which is random: nobody waits for another's key.
INSERT INTO {data_key} (id, subject, master, wrapped, created_at) VALUES (:id, :subject, :master, :wrapped, {clock})

-- name: vault.of_subject -> rows
-- Destroyed ones too, as long as copies of what they encrypted may be left.
SELECT {key_columns} FROM {data_key} WHERE subject {in_keys} ORDER BY id

-- name: vault.destroy -> count
UPDATE {data_key} SET master = NULL, wrapped = NULL, erased_at = {clock} WHERE id {in_keys} AND erased_at IS NULL

-- name: vault.forget -> count
UPDATE {data_key} SET subject = NULL WHERE id {in_keys} AND subject IS NOT NULL

-- name: vault.wrapped_by_others -> rows
SELECT {key_columns} FROM {data_key}
WHERE wrapped IS NOT NULL AND master <> :master AND id > :after ORDER BY id LIMIT :limit

-- name: vault.rewrap -> count
-- Not if it was erased meanwhile.
UPDATE {data_key} SET master = :master, wrapped = :wrapped WHERE id = :id AND master = :old AND wrapped IS NOT NULL

-- name: vault.masters -> rows
SELECT master, count(*) FROM {data_key} GROUP BY master ORDER BY master

-- name: vault.waiting -> rows
SELECT count(*) FROM {data_key} WHERE wrapped IS NOT NULL AND master <> :master
