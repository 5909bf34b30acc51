-- name: inbox.adopt.turn -> rows
-- One processor picks up at a time; who finds another at it does not wait.
SELECT 1 FROM {meta} WHERE name = 'adopted' {skip_locked}

-- name: inbox.adopt.unknown -> count
DELETE FROM {map} WHERE seq {in_seqs}

-- name: inbox.adopt.orphans -> rows
-- Dead letters whose rows are gone from their table.
SELECT d.seq FROM {dead} d WHERE NOT EXISTS (SELECT 1 FROM {message} m WHERE m.seq = d.seq) ORDER BY d.seq LIMIT :limit

-- name: inbox.purge.dead_count -> rows
SELECT count(*) FROM {dead} d WHERE NOT EXISTS (SELECT 1 FROM {message} m WHERE m.seq = d.seq)

-- name: inbox.adopt.insert -> count
INSERT INTO {theirs} ({given}) VALUES ({values})

-- name: inbox.order.history -> rows
-- The same in their table, whichever program has processed them.
SELECT {history_key}, {history_headers} FROM {theirs} t
WHERE t.processed_at IS NOT NULL AND {history_key} {in_keys} AND :until::bigint >= 0

-- name: inbox.adopt.pick_up -> rows
-- An anti-join, not a cursor: a row that commits late is found whenever it comes.
INSERT INTO {map} (id, event_id, picked_at)
SELECT t.id, CAST(t.id AS text), {clock} FROM {theirs} t
WHERE t.processed_at IS NULL AND t.id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {map} m WHERE t.id = m.id)
ORDER BY {arrival} LIMIT :limit
ON CONFLICT DO NOTHING
RETURNING seq

-- name: inbox.adopt.recall -> rows
-- Rows that somebody asks for, and that are new here.
INSERT INTO {map} (id, event_id, picked_at)
SELECT t.id, CAST(t.id AS text), {clock} FROM {theirs} t
WHERE t.id {in_their_ids} AND NOT EXISTS (SELECT 1 FROM {map} m WHERE t.id = m.id)
ON CONFLICT DO NOTHING
RETURNING seq

-- name: inbox.adopt.revived -> rows
-- Given up or processed once, and somebody has taken that back in their table: a replay.
SELECT m.seq FROM {theirs} t JOIN {map} m ON t.id = m.id
WHERE t.processed_at IS NULL AND coalesce(t.retry_count, 0) < {most}
  AND NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.seq = m.seq)
LIMIT :limit

-- name: inbox.adopt.postpone -> count
UPDATE {pending_rows} SET due = {clock} + {ttl} WHERE {these}

-- name: inbox.adopt.waiting -> rows
-- Rows that wait and were not picked up yet.
SELECT count(*) FROM (SELECT 1 FROM {theirs} t WHERE t.processed_at IS NULL
                        AND NOT EXISTS (SELECT 1 FROM {map} m WHERE t.id = m.id) LIMIT 10001) x

-- name: inbox.adopt.known -> rows
SELECT CAST(t.id AS text) FROM {theirs} t WHERE t.id {in_their_ids}

-- name: inbox.adopt.bury -> count
UPDATE {theirs} SET retry_count = :attempts::integer, error = {given_error}
WHERE id {in_their_ids} AND processed_at IS NULL

-- name: inbox.purge.message -> count
-- Their table is not ours to empty: we forget what waits no more. A discarded row waits, and is known to be given up.
DELETE FROM {map} AS m WHERE m.seq {in_seqs}
  AND NOT EXISTS (SELECT 1 FROM {theirs} t WHERE t.id = m.id AND t.processed_at IS NULL)
