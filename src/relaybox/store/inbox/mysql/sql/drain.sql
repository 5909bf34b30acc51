-- name: inbox.drain.processed -> rows
-- The oldest that were processed more than :ttl seconds ago, by the index on the time.
SELECT seq FROM {done} WHERE processed_at < {clock} - INTERVAL :ttl SECOND ORDER BY processed_at LIMIT :limit
FOR UPDATE SKIP LOCKED

-- name: inbox.drain.dead -> rows
SELECT seq FROM {dead} WHERE dead_at < {clock} - INTERVAL :ttl SECOND ORDER BY seq LIMIT :limit
FOR UPDATE SKIP LOCKED

-- name: inbox.drain.seen -> count
-- Ids whose messages are gone: one that is forgotten while its message is here could be accepted beside it.
DELETE FROM {seen}
WHERE seen_at < {clock} - INTERVAL :ttl SECOND
  AND NOT EXISTS (SELECT 1 FROM {message} m WHERE m.event_id = CONVERT({seen}.event_id USING utf8mb4) COLLATE utf8mb4_bin)
LIMIT :limit
