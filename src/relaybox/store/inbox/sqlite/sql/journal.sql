-- name: inbox.journal.accepted -> count
INSERT INTO {journal} (event_type, pending)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:rows)

-- name: inbox.journal.add -> count
INSERT INTO {totals} (event_type, pending, processed, dead, waited)
SELECT coalesce(event_type, '?'), total(pending), total(processed), total(dead), min(max(total(waited), -4e18), 4e18)
FROM {journal} WHERE id {in_seqs} GROUP BY event_type
ON CONFLICT (event_type) DO UPDATE
SET pending = pending + excluded.pending, processed = processed + excluded.processed, dead = dead + excluded.dead,
    waited = min(max(waited + excluded.waited, -4e18), 4e18)

-- name: inbox.journal.remove -> count
DELETE FROM {journal} WHERE id {in_seqs}
