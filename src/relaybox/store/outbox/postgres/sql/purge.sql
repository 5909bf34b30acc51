-- name: outbox.purge.done -> rows
-- Finished and old: neither pending, claimed nor dead. Walks by seq from :after, so dead letters at the front are
-- passed once per run and not once per batch. Returns where it got to and how many went.
WITH seen AS MATERIALIZED (
  SELECT seq FROM {event}
  WHERE seq > :after AND coalesce(deliver_at, created_at) < :before
  ORDER BY seq LIMIT :limit),
gone AS (
  DELETE FROM {event} e USING seen
  WHERE e.seq = seen.seq
    AND NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.seq = e.seq)
    AND NOT EXISTS (SELECT 1 FROM {dead} d WHERE d.seq = e.seq)
    AND e.seq NOT IN (SELECT item / 65536 FROM {claim} c, unnest(c.items) AS item)
  RETURNING e.seq)
SELECT (SELECT count(*) FROM seen), (SELECT max(seq) FROM seen), (SELECT count(*) FROM gone)

-- name: outbox.purge.dead -> rows
-- Only on request: dead letters that died before :before, with their events.
WITH old AS MATERIALIZED (
  SELECT seq FROM {dead} WHERE dead_at < :before ORDER BY seq LIMIT :limit {skip_locked}),
letter AS (DELETE FROM {dead} d USING old WHERE d.seq = old.seq),
freed AS (DELETE FROM {hold} h USING old WHERE h.seq = old.seq),
gone AS (DELETE FROM {event} e USING old WHERE e.seq = old.seq RETURNING e.seq)
SELECT count(*) FROM gone

-- name: outbox.purge.age -> rows
-- Writer-only tables: by age alone, whatever the state.
WITH old AS MATERIALIZED (
  SELECT seq FROM {event} WHERE created_at < :before ORDER BY seq LIMIT :limit),
waiting AS (DELETE FROM {pending} p USING old WHERE p.seq = old.seq),
claimed AS (
  UPDATE {claim} c
  SET items = ARRAY(SELECT item FROM unnest(c.items) AS item WHERE item / 65536 NOT IN (SELECT seq FROM old))
  WHERE EXISTS (SELECT 1 FROM unnest(c.items) AS item WHERE item / 65536 IN (SELECT seq FROM old))),
letter AS (DELETE FROM {dead} d USING old WHERE d.seq = old.seq),
freed AS (DELETE FROM {hold} h USING old WHERE h.seq = old.seq),
gone AS (DELETE FROM {event} e USING old WHERE e.seq = old.seq RETURNING e.seq)
SELECT count(*) FROM gone
