-- name: inbox.alert.turn -> count
-- Whose turn it is to look, for :ttl seconds; 0: somebody else's. The row is locked to the end of the transaction, so that
-- no two tell the same.
UPDATE {turn} SET due = {clock} + {ttl}
WHERE job = 'alerts' AND (:at_once::boolean OR due <= {clock})

-- name: inbox.alert.dead -> rows
-- The oldest dead letters that nobody was told of.
SELECT {id_of_m}, {type_of_m}, d.attempts, {dead_error}
FROM {dead} d JOIN {message} m ON m.seq = d.seq WHERE NOT d.told ORDER BY d.seq LIMIT :limit

-- name: inbox.alert.told -> count
UPDATE {dead} SET told = true WHERE NOT told

-- name: inbox.alert.spans -> rows
-- The gaps that somebody was told of.
SELECT aggregate_id, first, last FROM {alert}
