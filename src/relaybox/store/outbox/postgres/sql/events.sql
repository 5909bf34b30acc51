-- name: outbox.events.discard -> rows
-- Dead letters, or (:open) what still has work, with their events. Who holds one finds its claim gone.
WITH waiting AS (DELETE FROM {pending} WHERE :open::boolean AND seq {in_seqs} RETURNING seq),
held AS MATERIALIZED (
  SELECT c.token, item / 65536 AS seq FROM {claim} c, unnest(c.items) AS item
  WHERE :open AND item / 65536 {in_seqs} FOR UPDATE OF c),
claimed AS (
  UPDATE {claim} c
  SET items = ARRAY(SELECT item FROM unnest(c.items) AS item WHERE item / 65536 NOT IN (SELECT seq FROM held))
  WHERE c.token IN (SELECT token FROM held)),
letter AS (DELETE FROM {dead} WHERE NOT :open AND seq {in_seqs} RETURNING seq),
old AS MATERIALIZED (SELECT seq FROM waiting UNION SELECT seq FROM held UNION SELECT seq FROM letter),
freed AS (DELETE FROM {hold} h USING old WHERE h.seq = old.seq),
gone AS (DELETE FROM {event} e USING old WHERE e.seq = old.seq RETURNING e.seq)
SELECT count(*) FROM gone
