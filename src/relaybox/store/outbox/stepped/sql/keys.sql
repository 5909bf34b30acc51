-- name: outbox.keys.recent -> rows
-- The keys of which something came after :after, a number of an event, and that wait.
SELECT DISTINCT p.key_hash FROM {pending} p WHERE p.seq > :after AND {ready}
