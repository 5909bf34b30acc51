-- name: inbox.drain.processed -> rows
-- The oldest processed before :before, by the index on the time.
SELECT seq FROM {done} WHERE processed_at < :before ORDER BY processed_at LIMIT :limit
FOR UPDATE SKIP LOCKED

-- name: inbox.drain.dead -> rows
SELECT seq FROM {dead} WHERE dead_at < :before ORDER BY seq LIMIT :limit
FOR UPDATE SKIP LOCKED

-- name: inbox.drain.seen -> count
-- Ids whose messages were drained before.
DELETE FROM {message} WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM {message} WHERE payload IS NULL AND received_at < :before
  LIMIT :limit FOR UPDATE SKIP LOCKED))
