-- name: inbox.message.waiting -> rows
-- What is not processed yet, for people to look at: nothing is claimed or locked. Oldest first, by keyset.
SELECT m.seq, {message_columns}, m.source,
       p.attempts, p.last_error, p.position, CASE WHEN p.owner IS NULL AND NOT p.held THEN p.due END, NULL,
       CASE WHEN p.held THEN 'held' WHEN p.owner IS NOT NULL THEN 'claimed' WHEN p.attempts > 0 THEN 'retry'
            ELSE 'pending' END
FROM {pending} p {message_of_p}
WHERE p.seq > :after
  {filter}
ORDER BY p.seq LIMIT :limit

-- name: inbox.message.dead -> rows
SELECT m.seq, {message_columns}, m.source,
       d.attempts, d.last_error, d.position, NULL, d.dead_at, 'dead'
FROM {dead} d {message_of_d}
WHERE d.seq > :after
  {filter}
ORDER BY d.seq LIMIT :limit

-- name: inbox.message.processed -> rows
SELECT m.seq, {message_columns}, m.source,
       f.attempts, NULL, NULL, NULL, f.processed_at, 'processed'
FROM {done} f {message_of_f}
WHERE f.seq > :after
  {filter}
ORDER BY f.seq LIMIT :limit
