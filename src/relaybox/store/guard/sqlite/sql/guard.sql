-- name: guard.purge -> count
DELETE FROM {guard} WHERE (consumer, event_id) IN (
  SELECT consumer, event_id FROM {guard} WHERE until <= {clock} ORDER BY until LIMIT :limit)
