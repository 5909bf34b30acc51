-- name: guard.purge -> count
DELETE FROM {guard} g USING (
  SELECT consumer, event_id FROM {guard} WHERE until <= {clock}
  ORDER BY until LIMIT :limit {skip_locked}) old
WHERE g.consumer = old.consumer AND g.event_id = old.event_id
