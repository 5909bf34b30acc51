-- name: inbox.drain.processed -> rows
-- The oldest that were processed more than :ttl seconds ago, by the index on the time.
SELECT seq FROM {done} WHERE processed_at < {clock} - {ttl} ORDER BY processed_at LIMIT :limit

-- name: inbox.drain.dead -> rows
SELECT seq FROM {dead} WHERE dead_at < {clock} - {ttl} ORDER BY seq LIMIT :limit

-- name: inbox.drain.seen -> count
-- Ids whose messages are gone: one that is forgotten while its message is here could be accepted beside it.
DELETE FROM {seen} WHERE event_id IN (
  SELECT s.event_id FROM {seen} s
  WHERE s.seen_at < {clock} - {ttl} AND NOT EXISTS (SELECT 1 FROM {message} m WHERE m.event_id = s.event_id)
  LIMIT :limit)
