-- name: guard.insert -> count
-- If another transaction has inserted this key and not ended, this waits for it: committed, there is nothing to
-- insert; rolled back, the row is ours. IGNORE and not ON DUPLICATE KEY UPDATE, whose count depends on a flag of the
-- connection. What else IGNORE would forgive (too long, too late) was refused before.
INSERT IGNORE INTO {guard} (consumer, event_id, token, until, done_at)
VALUES (:consumer, :event_id, :token, {clock} + INTERVAL :ttl SECOND, CASE WHEN :done THEN {clock} END)

-- name: guard.take_over -> count
-- What is there has expired: the lease of somebody who died, or a mark past its time that nobody has purged.
UPDATE {guard}
SET token = :token, until = {clock} + INTERVAL :ttl SECOND, done_at = CASE WHEN :done THEN {clock} END
WHERE consumer = :consumer AND event_id = :event_id AND until <= {clock}

-- name: guard.state -> rows
-- A locking read sees what is there now, also in a transaction that shows its first snapshot (REPEATABLE READ).
SELECT done_at IS NOT NULL FROM {guard} WHERE consumer = :consumer AND event_id = :event_id LOCK IN SHARE MODE

-- name: guard.renew -> count
UPDATE {guard} SET until = {clock} + INTERVAL :lease SECOND
WHERE consumer = :consumer AND event_id = :event_id AND token = :token AND done_at IS NULL

-- name: guard.done -> count
UPDATE {guard} SET until = {clock} + INTERVAL :ttl SECOND, done_at = {clock}
WHERE consumer = :consumer AND event_id = :event_id AND token = :token AND done_at IS NULL

-- name: guard.leave -> count
DELETE FROM {guard} WHERE consumer = :consumer AND event_id = :event_id AND token = :token

-- name: guard.delete -> count
-- No owner is asked for: the plain mode knows none.
DELETE FROM {guard} WHERE consumer = :consumer AND event_id = :event_id

-- name: guard.purge -> count
DELETE FROM {guard} WHERE until <= {clock} ORDER BY until LIMIT :limit
