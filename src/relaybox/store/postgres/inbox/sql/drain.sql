-- name: inbox.drain.processed -> rows
-- The oldest processed before :before, by the index on the time.
SELECT seq FROM {done} WHERE processed_at < :before ORDER BY processed_at LIMIT :limit
FOR UPDATE SKIP LOCKED

-- name: inbox.drain.dead -> rows
SELECT seq FROM {dead} WHERE dead_at < :before ORDER BY seq LIMIT :limit
FOR UPDATE SKIP LOCKED

-- name: inbox.drain.seen -> count
-- Ids whose messages are gone: one that is forgotten while its message is here could be accepted beside it.
DELETE FROM {seen} WHERE ctid = ANY(ARRAY(
  SELECT s.ctid FROM {seen} s
  WHERE s.seen_at < :before AND NOT EXISTS (SELECT 1 FROM {message} m WHERE m.event_id = s.event_id)
  LIMIT :limit FOR UPDATE SKIP LOCKED))
