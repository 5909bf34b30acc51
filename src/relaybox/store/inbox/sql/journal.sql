-- name: inbox.journal.any -> rows
SELECT 1 FROM {journal} LIMIT 1
