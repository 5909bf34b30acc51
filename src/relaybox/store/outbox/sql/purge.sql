-- name: outbox.purge.seen -> rows
-- Old events from :after on, by seq, so dead letters at the front are passed once per run. Locked before anybody asks
-- whether they are finished: they may be replayed at this moment.
SELECT seq FROM {event}
WHERE seq > :after AND coalesce(deliver_at, created_at) < :before ORDER BY seq LIMIT :limit {skip_locked}

-- name: outbox.purge.done -> count
-- Of those the finished: neither pending, claimed nor dead.
DELETE FROM {event} AS e
WHERE e.seq {in_seqs}
  AND NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.seq = e.seq)
  AND NOT EXISTS (SELECT 1 FROM {dead} d WHERE d.seq = e.seq) {and_unclaimed}

-- name: outbox.purge.dead -> rows
-- Only on request: dead letters that died before :before, with their events.
SELECT seq FROM {dead} WHERE dead_at < :before ORDER BY seq LIMIT :limit {skip_locked}

-- name: outbox.purge.age -> rows
-- Writer-only tables: by age alone, whatever the state.
SELECT seq FROM {event} WHERE created_at < :before ORDER BY seq LIMIT :limit
