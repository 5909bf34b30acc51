-- Messages for operators: nothing is claimed or locked by a look. Oldest first, by keyset (:after) so that long lists
-- page.

-- name: inbox.events.ids -> rows
-- Not ORDER BY: our sessions would read all messages in that order rather than sort.
SELECT m.seq FROM {message} m WHERE m.event_id {in_ids} AND {of_sender}

-- name: inbox.events.newest -> rows
-- Where the messages end that are here, and what time it is.
SELECT coalesce(max(seq), 0), {clock} FROM {message}

-- name: inbox.events.open -> rows
SELECT m.seq, {message_columns}, p.attempts, {open_error}, {open_due}, NULL,
       CASE WHEN p.held THEN 'held' WHEN p.owner IS NOT NULL THEN 'claimed' WHEN p.attempts > 0 THEN 'retry'
            ELSE 'waiting' END, {sender_of_m}
FROM {pending} p {message_of_p} {where_open} ORDER BY p.seq LIMIT :limit

-- name: inbox.events.open_count -> rows
SELECT count(*) FROM {pending} p JOIN {message} m ON m.seq = p.seq {where_open}

-- name: inbox.events.open_numbers -> rows
SELECT p.seq FROM {pending} p {message_of_p} {where_open} ORDER BY p.seq LIMIT :limit

-- name: inbox.events.dead -> rows
SELECT m.seq, {message_columns}, d.attempts, {dead_error}, NULL, {dead_at}, 'dead', {sender_of_m}
FROM {dead} d {message_of_d} {where_dead} ORDER BY d.seq LIMIT :limit

-- name: inbox.events.dead_count -> rows
SELECT count(*) FROM {dead} d JOIN {message} m ON m.seq = d.seq {where_dead}

-- name: inbox.events.dead_numbers -> rows
SELECT d.seq FROM {dead} d {message_of_d} {where_dead} ORDER BY d.seq LIMIT :limit

-- name: inbox.events.done -> rows
SELECT m.seq, {message_columns}, f.attempts, NULL, NULL, {done_at}, 'done', {sender_of_m}
FROM {done} f {message_of_f} {where_done} ORDER BY f.seq LIMIT :limit

-- name: inbox.events.done_count -> rows
SELECT count(*) FROM {done} f JOIN {message} m ON m.seq = f.seq {where_done}

-- name: inbox.events.done_numbers -> rows
SELECT f.seq FROM {done} f {message_of_f} {where_done} ORDER BY f.seq LIMIT :limit

-- name: inbox.events.read -> rows
-- Without their payloads.
SELECT t.seq, {without_payload} FROM {message_rows} WHERE {these} ORDER BY t.seq

-- name: inbox.events.lock_done -> rows
-- Locked before it is read: a purge passes over it, and one that was first is waited for.
SELECT t.seq FROM {done_rows} WHERE {these} AND t.processed_at <= :cutoff ORDER BY t.seq {for_update}

-- name: inbox.events.lock_dead -> rows
SELECT t.seq FROM {dead_rows} WHERE {these} AND (:cutoff::timestamptz IS NULL OR t.dead_at <= :cutoff)
ORDER BY t.seq {for_update}

-- name: inbox.events.lock_open -> rows
-- All but those that a handler is at.
SELECT t.seq FROM {pending_rows} WHERE {these} ORDER BY t.seq {skip_locked}
