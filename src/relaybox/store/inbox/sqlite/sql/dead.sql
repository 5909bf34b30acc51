-- name: inbox.dead.count -> rows
SELECT count(*) FROM {dead} d JOIN {message} m ON m.seq = d.seq
WHERE true
  AND (:event_type IS NULL OR m.event_type = :event_type)
  AND (:source IS NULL OR m.source = :source)
  AND (:aggregate_id IS NULL OR m.aggregate_id = :aggregate_id)
  AND (:tenant_id IS NULL OR m.tenant_id = :tenant_id)
  AND (:since IS NULL OR m.received_at >= :since)
  AND (:before IS NULL OR m.received_at < :before)

-- name: inbox.replay.find -> rows
SELECT seq FROM {message} WHERE event_id IN (SELECT value FROM json_each(:event_ids))

-- name: inbox.replay.done -> rows
-- Nobody else writes while this transaction does.
SELECT seq FROM {done} WHERE seq IN {seqs}

-- name: inbox.replay.dead -> rows
SELECT seq FROM {dead} WHERE seq IN {seqs}

-- name: inbox.replay.read -> rows
-- Of these ids the messages that are dead or processed. Their payloads stay where they are.
SELECT m.seq, m.event_id, m.event_type, m.aggregate_type, m.aggregate_id, m.tenant_id, m.content_type,
       x'', m.headers, m.occurred_at, NULL, m.received_at, d.seq IS NOT NULL, f.seq IS NOT NULL
FROM {message} m LEFT JOIN {dead} d ON d.seq = m.seq LEFT JOIN {done} f ON f.seq = m.seq
WHERE m.event_id IN (SELECT value FROM json_each(:event_ids)) AND (d.seq IS NOT NULL OR f.seq IS NOT NULL)
ORDER BY m.seq

-- name: inbox.replay.pending -> count
-- Due at once, with fresh attempts. A number that has had its turn runs beside the sequence.
INSERT INTO {pending} (seq, due, key_hash, position, priority, replayed, attempts)
SELECT json_extract(value, '$[0]'), {clock}, json_extract(value, '$[1]'), json_extract(value, '$[2]'),
       json_extract(value, '$[3]'), 1, 0
FROM json_each(:rows) WHERE true
ON CONFLICT DO NOTHING

-- name: inbox.replay.undone -> count
DELETE FROM {done} WHERE seq IN {seqs}

-- name: inbox.replay.undead -> count
DELETE FROM {dead} WHERE seq IN {seqs}

-- name: inbox.drain.message -> count
DELETE FROM {message} WHERE seq IN {seqs}
