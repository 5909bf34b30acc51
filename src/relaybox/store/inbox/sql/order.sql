-- name: inbox.order.hold -> count
UPDATE {pending} SET due = {never}, held = true WHERE seq {in_seqs}

-- name: inbox.order.advance -> count
-- In the transaction of the effect: of two that have the same number one gets through.
UPDATE {state} SET next = :position + 1, moved_at = {clock}
WHERE key_hash = :key_hash AND aggregate_id = :key AND next = :position

-- name: inbox.order.next -> rows
SELECT next FROM {state} WHERE key_hash = :key_hash AND aggregate_id = :key

-- name: inbox.order.wake -> count
UPDATE {pending} SET due = CASE WHEN held THEN {clock} ELSE due END, held = false
WHERE seq {in_seqs} AND owner IS NULL

-- name: inbox.order.move -> count
-- An operator's word, or age: the key goes on with this number. It never goes back.
INSERT INTO {state} AS s (key_hash, aggregate_id, next, moved_at)
VALUES (:key_hash, :key, :next, {clock})
ON CONFLICT (key_hash, aggregate_id) DO UPDATE SET next = excluded.next, moved_at = excluded.moved_at
WHERE s.next < excluded.next

-- name: inbox.order.lowest -> rows
-- The lowest number of a key that is held back.
SELECT min(position) FROM {pending} WHERE key_hash = :key_hash AND position IS NOT NULL AND held

-- name: inbox.order.history -> rows
-- Processed messages of keys that wait for a number: it may have been processed before there was an order, up to :until.
SELECT m.aggregate_id, m.headers FROM {done} f JOIN {message} m ON m.seq = f.seq
WHERE f.seq <= :until AND m.aggregate_id {in_keys} AND m.headers IS NOT NULL

-- name: inbox.order.last -> rows
-- Where the messages end that are here, and what time it is.
SELECT coalesce(max(seq), 0), {clock} FROM {message}

-- name: inbox.order.older -> rows
-- Whether a processor is alive that began before there was an order, and keeps none.
SELECT 1 FROM {instance} WHERE started_at < :at AND expires_at >= {clock} LIMIT 1

-- name: inbox.order.free -> count
-- Order is given up: whatever was held back is due.
UPDATE {pending} SET due = {clock}, held = false WHERE held
