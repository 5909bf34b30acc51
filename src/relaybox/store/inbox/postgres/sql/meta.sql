-- name: inbox.meta.lock -> rows
-- Serialises those that change what all agree on.
SELECT pg_advisory_xact_lock(hashtextextended('{meta}', 0)) IS NULL
