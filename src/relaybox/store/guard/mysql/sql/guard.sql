-- name: guard.insert -> count
-- If another transaction has inserted this key and not ended, this waits for it: committed, there is nothing to
-- insert; rolled back, the row is ours. IGNORE and not ON DUPLICATE KEY UPDATE, whose count depends on a flag of the
-- connection. What else IGNORE would forgive (too long, too late) was refused before.
INSERT IGNORE INTO {guard} (consumer, event_id, token, until, done_at)
VALUES (:consumer, :event_id, :token, {clock} + {ttl}, CASE WHEN :done THEN {clock} END)

-- name: guard.state -> rows
-- A locking read sees what is there now, also in a transaction that shows its first snapshot (REPEATABLE READ).
SELECT done_at IS NOT NULL FROM {guard} WHERE consumer = :consumer AND event_id = :event_id LOCK IN SHARE MODE

-- name: guard.purge -> count
DELETE FROM {guard} WHERE until <= {clock} ORDER BY until LIMIT :limit
