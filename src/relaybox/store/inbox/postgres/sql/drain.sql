-- name: inbox.drain.processed -> rows
-- The oldest that were processed more than :ttl seconds ago, by the index on the time.
SELECT seq FROM {done} WHERE processed_at < (SELECT coalesce(:now, clock_timestamp()) - make_interval(secs => :ttl::float8)) ORDER BY processed_at LIMIT :limit
FOR UPDATE SKIP LOCKED

-- name: inbox.drain.dead -> rows
SELECT seq FROM {dead} WHERE dead_at < (SELECT coalesce(:now, clock_timestamp()) - make_interval(secs => :ttl::float8)) ORDER BY seq LIMIT :limit
FOR UPDATE SKIP LOCKED

-- name: inbox.drain.seen -> count
-- Ids whose messages were drained before.
DELETE FROM {message} WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM {message} WHERE payload IS NULL AND received_at < (SELECT coalesce(:now, clock_timestamp()) - make_interval(secs => :ttl::float8))
  LIMIT :limit FOR UPDATE SKIP LOCKED))
