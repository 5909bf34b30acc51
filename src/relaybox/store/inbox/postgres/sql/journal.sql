-- name: inbox.journal.done -> count
-- How the numbers by type change with processed messages that go: for good (:pending 0) or to be processed again (1).
-- Who comes second waits here, and finds them gone.
INSERT INTO {journal} (event_type, pending, processed, waited)
SELECT coalesce(m.event_type, '?'), count(*) * :pending::integer, -count(*), -{all_waited}
FROM (SELECT seq, waited FROM {done} WHERE seq {in_seqs} ORDER BY seq FOR UPDATE) t
JOIN {message} m ON m.seq = t.seq
GROUP BY m.event_type

-- name: inbox.journal.dead -> count
-- The same for dead letters, which come (:dead 1) or go (-1).
INSERT INTO {journal} (event_type, pending, dead)
SELECT coalesce(m.event_type, '?'), count(*) * :pending::integer, count(*) * :dead::integer
FROM (SELECT seq FROM {dead} WHERE seq {in_seqs} ORDER BY seq FOR UPDATE) d
JOIN {message} m ON m.seq = d.seq
GROUP BY m.event_type

-- name: inbox.journal.fold -> rows
-- Into the totals, atomically: who reads both in one statement sees each change once. A row that is not committed yet is
-- not seen, and folded later. In the order of types, so that no two wait for each other.
WITH gone AS (
  DELETE FROM {journal}
  WHERE ctid = ANY(ARRAY(SELECT ctid FROM {journal} LIMIT :limit {skip_locked}))
  RETURNING event_type, pending, processed, dead, waited),
added AS (
  INSERT INTO {totals} AS t (event_type, pending, processed, dead, waited)
  SELECT event_type, coalesce(sum(pending), 0), coalesce(sum(processed), 0), coalesce(sum(dead), 0),
         least(greatest(coalesce(sum(waited), 0), -4e18), 4e18)
  FROM gone GROUP BY event_type ORDER BY event_type
  ON CONFLICT (event_type) DO UPDATE
  SET pending = t.pending + excluded.pending, processed = t.processed + excluded.processed,
      dead = t.dead + excluded.dead, waited = least(greatest(t.waited::numeric + excluded.waited::numeric, -4e18), 4e18))
SELECT count(*) FROM gone
