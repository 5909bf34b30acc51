-- name: inbox.journal.pick -> rows
SELECT id FROM {journal} ORDER BY id LIMIT :limit
{skip_locked}
