-- name: inbox.journal.accepted -> count
INSERT INTO {journal} (event_type, pending)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:rows)

-- name: inbox.journal.add -> count
INSERT INTO {totals} (event_type, pending, processed, dead, waited)
SELECT event_type, coalesce(sum(pending), 0), coalesce(sum(processed), 0), coalesce(sum(dead), 0),
       coalesce(sum(waited), 0)
FROM {journal} WHERE id {in_seqs} GROUP BY event_type
ON CONFLICT (event_type) DO UPDATE
SET pending = pending + excluded.pending, processed = processed + excluded.processed, dead = dead + excluded.dead,
    waited = waited + excluded.waited

-- name: inbox.journal.remove -> count
DELETE FROM {journal} WHERE id {in_seqs}
