-- name: inbox.purge.done -> rows
-- The oldest that were processed more than :ttl seconds ago, by the index on the time.
SELECT seq FROM {done} WHERE processed_at < {ttl_ago} ORDER BY processed_at LIMIT :limit
{skip_locked}

-- name: inbox.purge.dead -> rows
SELECT seq FROM {dead} WHERE dead_at < {ttl_ago} ORDER BY seq LIMIT :limit
{skip_locked}

-- name: inbox.purge.done_count -> rows
SELECT count(*) FROM {done} WHERE processed_at < {ttl_ago}

-- name: inbox.purge.dead_count -> rows
SELECT count(*) FROM {dead} WHERE dead_at < {ttl_ago}
