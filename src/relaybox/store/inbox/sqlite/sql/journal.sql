-- name: inbox.journal.accepted -> count
INSERT INTO {journal} (event_type, pending)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:rows)

-- name: inbox.journal.marked -> count
-- How the numbers by type change with messages that were processed just now.
INSERT INTO {journal} (event_type, pending, processed, waited)
SELECT m.event_type, -count(*), count(*), CAST(sum(round(f.waited * 1000000)) AS integer)
FROM {done} f JOIN {message} m ON m.seq = f.seq
WHERE f.seq {in_seqs}
GROUP BY m.event_type

-- name: inbox.journal.done -> count
-- The same for processed messages that go: for good (:pending 0) or to be processed again (1).
INSERT INTO {journal} (event_type, pending, processed, waited)
SELECT m.event_type, count(*) * :pending, -count(*), -CAST(sum(round(f.waited * 1000000)) AS integer)
FROM {done} f JOIN {message} m ON m.seq = f.seq
WHERE f.seq {in_seqs}
GROUP BY m.event_type

-- name: inbox.journal.dead -> count
-- The same for dead letters, which come (:dead 1) or go (-1).
INSERT INTO {journal} (event_type, pending, dead)
SELECT m.event_type, count(*) * :pending, count(*) * :dead
FROM {dead} d JOIN {message} m ON m.seq = d.seq
WHERE d.seq {in_seqs}
GROUP BY m.event_type

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
