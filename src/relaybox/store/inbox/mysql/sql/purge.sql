-- name: inbox.purge.seen -> count
-- Ids whose messages are gone: one that is forgotten while its message is here could be accepted beside it.
DELETE FROM {seen}
WHERE seen_at < {ttl_ago}
  AND NOT EXISTS (SELECT 1 FROM {message} m WHERE m.event_id = CONVERT({seen}.event_id USING utf8mb4) COLLATE utf8mb4_bin
                    AND {seen}.sender IN (CAST(m.sender AS binary), '*'))
LIMIT :limit
