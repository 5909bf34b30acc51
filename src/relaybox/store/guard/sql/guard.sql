-- name: guard.insert -> count
-- If another transaction has inserted this key and not ended, this waits for it: committed, there is nothing to
-- insert; rolled back, the row is ours. Nobody could say earlier who is first. DO NOTHING: a duplicate locks nothing.
INSERT INTO {guard} (consumer, event_id, token, until, done_at)
VALUES (:consumer, :event_id, :token, {clock} + {ttl}, CASE WHEN :done::boolean THEN {clock} END)
ON CONFLICT DO NOTHING

-- name: guard.take_over -> count
-- What is there has expired: the lease of somebody who died, or a mark past its time that nobody has purged.
UPDATE {guard}
SET token = :token, until = {clock} + {ttl}, done_at = CASE WHEN :done::boolean THEN {clock} END
WHERE consumer = :consumer AND event_id = :event_id AND until <= {clock}

-- name: guard.state -> rows
SELECT done_at IS NOT NULL FROM {guard} WHERE consumer = :consumer AND event_id = :event_id

-- name: guard.renew -> count
UPDATE {guard} SET until = {clock} + {lease_time}
WHERE consumer = :consumer AND event_id = :event_id AND token = :token AND done_at IS NULL

-- name: guard.done -> count
UPDATE {guard}
SET until = {clock} + {ttl}, done_at = {clock}
WHERE consumer = :consumer AND event_id = :event_id AND token = :token AND done_at IS NULL

-- name: guard.leave -> count
DELETE FROM {guard} WHERE consumer = :consumer AND event_id = :event_id AND token = :token

-- name: guard.delete -> count
-- No owner is asked for: the plain mode knows none.
DELETE FROM {guard} WHERE consumer = :consumer AND event_id = :event_id
