-- name: inbox.adopt.turn -> rows
-- One processor picks up at a time; who finds another at it does not wait.
SELECT 1 FROM {meta} WHERE name = 'adopted' {skip_locked}

-- name: inbox.adopt.unknown -> count
DELETE FROM {map} WHERE seq {in_seqs}

-- name: inbox.adopt.orphans -> rows
-- Dead letters whose rows are gone from their table.
SELECT d.seq FROM {dead} d WHERE NOT EXISTS (SELECT 1 FROM {message} m WHERE m.seq = d.seq) ORDER BY d.seq LIMIT :limit

-- name: inbox.adopt.insert -> count
INSERT INTO {theirs} ({given}) VALUES ({values})

-- name: inbox.replay.read -> rows
-- Of these ids the messages that do not wait.
SELECT m.seq, {without_payload}, d.seq IS NOT NULL, f.seq IS NOT NULL
FROM {message} m LEFT JOIN {dead} d ON d.seq = m.seq LEFT JOIN {done} f ON f.seq = m.seq
LEFT JOIN {pending} p ON p.seq = m.seq
WHERE m.event_id {in_ids} AND p.seq IS NULL
ORDER BY m.seq

-- name: inbox.order.history -> rows
-- The same in their table, whichever program has processed them.
SELECT {history_key}, {history_headers} FROM {theirs} t
WHERE t.processed_at IS NOT NULL AND {history_key} {in_keys} AND :until::bigint >= 0
