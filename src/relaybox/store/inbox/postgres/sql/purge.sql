-- name: inbox.purge.seen -> count
-- Ids whose messages were purged before.
DELETE FROM {message} WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM {message} WHERE payload IS NULL AND received_at < {ttl_ago}
  LIMIT :limit {skip_locked}))
