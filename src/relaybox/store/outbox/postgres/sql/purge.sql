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
