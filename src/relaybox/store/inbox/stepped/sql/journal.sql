-- name: inbox.journal.pick -> rows
SELECT id FROM {journal} ORDER BY id LIMIT :limit
{skip_locked}

-- name: inbox.journal.marked -> count
-- How the numbers by type change with messages that were processed just now.
INSERT INTO {journal} (event_type, pending, processed, waited)
SELECT coalesce(m.event_type, '?'), -count(*), count(*), {all_waited}
FROM {done_rows} {with_message} WHERE {these} GROUP BY m.event_type

-- name: inbox.journal.done -> count
-- The same for processed messages that go, which are locked: for good (:pending 0) or to be processed again (1).
INSERT INTO {journal} (event_type, pending, processed, waited)
SELECT coalesce(m.event_type, '?'), count(*) * :pending, -count(*), -{all_waited}
FROM {done_rows} {with_message} WHERE {these} GROUP BY m.event_type

-- name: inbox.journal.dead -> count
-- The same for dead letters, which come (:dead 1) or go (-1).
INSERT INTO {journal} (event_type, pending, dead)
SELECT coalesce(m.event_type, '?'), count(*) * :pending, count(*) * :dead
FROM {dead_rows} {with_message} WHERE {these} GROUP BY m.event_type
