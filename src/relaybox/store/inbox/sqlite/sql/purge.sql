-- name: inbox.purge.seen -> count
-- Ids whose messages are gone: one that is forgotten while its message is here could be accepted beside it.
DELETE FROM {seen} WHERE (event_id, sender) IN (
  SELECT s.event_id, s.sender FROM {seen} s
  WHERE s.seen_at < {ttl_ago}
    AND NOT EXISTS (SELECT 1 FROM {message} m WHERE m.event_id = s.event_id AND s.sender IN (m.sender, '*'))
  LIMIT :limit)
