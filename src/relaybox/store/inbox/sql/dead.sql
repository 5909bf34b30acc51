-- name: inbox.dead.count -> rows
SELECT count(*) FROM {dead} d JOIN {message} m ON m.seq = d.seq
WHERE true
  {filter}

-- name: inbox.replay.find -> rows
SELECT seq FROM {message} WHERE event_id {in_ids}

-- name: inbox.replay.done -> rows
-- Locked before it is read: a purge passes over it, and one that was first is waited for.
SELECT seq FROM {done} WHERE seq {in_seqs} ORDER BY seq {for_update}

-- name: inbox.replay.dead -> rows
SELECT seq FROM {dead} WHERE seq {in_seqs} ORDER BY seq {for_update}

-- name: inbox.replay.read -> rows
-- Of these ids the messages that are dead or processed. Their payloads stay where they are.
SELECT m.seq, {without_payload}, d.seq IS NOT NULL, f.seq IS NOT NULL
FROM {message} m LEFT JOIN {dead} d ON d.seq = m.seq LEFT JOIN {done} f ON f.seq = m.seq
WHERE m.event_id {in_ids} AND (d.seq IS NOT NULL OR f.seq IS NOT NULL)
ORDER BY m.seq

-- name: inbox.replay.undone -> count
DELETE FROM {done} WHERE seq {in_seqs}

-- name: inbox.replay.undead -> count
DELETE FROM {dead} WHERE seq {in_seqs}
