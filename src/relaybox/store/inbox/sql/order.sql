-- name: inbox.order.hold -> count
UPDATE {pending_rows} SET due = {never}, held = true WHERE {these}

-- name: inbox.order.advance -> count
-- In the transaction of the effect: of two that have the same number one gets through.
UPDATE {state} SET next = :position + 1, moved_at = {clock}
WHERE key_hash = :key_hash AND aggregate_id = :key AND next = :position

-- name: inbox.order.next -> rows
SELECT next FROM {state} WHERE key_hash = :key_hash AND aggregate_id = :key

-- name: inbox.order.wake -> count
-- What is held back is never due. By the primary key, in the order in which everybody locks.
UPDATE {pending_rows} SET due = CASE WHEN due = {never} THEN {clock} ELSE due END, held = false
WHERE {these} AND t.owner IS NULL

-- name: inbox.order.move -> count
-- An operator's word, or age: the key goes on with this number. It never goes back.
INSERT INTO {state} AS s (key_hash, aggregate_id, next, moved_at)
VALUES (:key_hash, :key, :next, {clock})
ON CONFLICT (key_hash, aggregate_id) DO UPDATE SET next = excluded.next, moved_at = excluded.moved_at
WHERE s.next < excluded.next

-- name: inbox.order.lowest -> rows
-- The lowest number of a key that is here and has not had its turn, and whether it is tried again later.
SELECT seq, position, owner IS NULL AND last_error IS NOT NULL FROM {pending}
WHERE key_hash = :key_hash AND position IS NOT NULL AND position >= :next ORDER BY position LIMIT 1

-- name: inbox.order.aside -> count
-- From now on it runs beside the sequence.
UPDATE {pending} SET replayed = true WHERE seq = :seq

-- name: inbox.order.retries -> rows
-- The next messages of their keys that have failed and are tried again.
SELECT {key_of_m}, {received}, {id_of_m}, p.attempts, {open_error}
FROM {pending} p JOIN {message} m ON m.seq = p.seq JOIN {state} s ON s.key_hash = p.key_hash
WHERE p.position = s.next AND p.last_error IS NOT NULL AND NOT p.held
ORDER BY p.seq LIMIT :limit

-- name: inbox.order.history -> rows
-- Processed messages of keys that wait for a number: it may have been processed before there was an order, up to :until.
SELECT {key_of_m}, {headers_of_m} FROM {done} f JOIN {message} m ON m.seq = f.seq
WHERE f.seq <= :until AND m.aggregate_id {in_keys} AND m.headers IS NOT NULL

-- name: inbox.order.older -> rows
-- Whether a processor is alive that began before there was an order, and keeps none.
SELECT 1 FROM {instance} WHERE started_at < :at AND expires_at >= {clock} LIMIT 1

-- name: inbox.order.free -> count
-- Order is given up: whatever was held back is due.
UPDATE {pending} SET due = {clock}, held = false WHERE held

-- name: inbox.order.numbered -> rows
-- Of messages that are about to go those that may have a number.
SELECT t.seq, {key_of_t}, {headers_of_t} FROM {message_rows}
WHERE {these} AND t.aggregate_id IS NOT NULL AND {find_text}(t.headers, 'sequence') > 0
