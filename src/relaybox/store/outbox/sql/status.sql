-- name: outbox.status.failing -> rows
-- Waiting events whose last try failed, be it nobody's fault.
SELECT count(last_error) FROM {pending}

-- name: outbox.status.waiting -> rows
-- What is due, in the order it was written, for people to look at: nothing is claimed or locked.
SELECT e.seq, {event_columns}
FROM {pending} p JOIN {event} e ON e.seq = p.seq
WHERE p.owner IS NULL AND {ready} ORDER BY p.seq LIMIT :limit
