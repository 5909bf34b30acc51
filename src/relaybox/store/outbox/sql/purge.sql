-- name: outbox.purge.now -> rows
-- Ages are counted by the clock that dated the events.
SELECT {clock}

-- name: outbox.purge.dead -> rows
-- Only on request: dead letters that died before :before, with their events.
SELECT seq FROM {dead} WHERE dead_at < :before ORDER BY seq LIMIT :limit {skip_locked}

-- name: outbox.purge.age -> rows
-- Writer-only tables: by age alone, whatever the state.
SELECT seq FROM {event} WHERE created_at < :before ORDER BY seq LIMIT :limit
