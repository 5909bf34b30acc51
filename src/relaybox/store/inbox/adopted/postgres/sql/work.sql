-- name: inbox.adopt.picked -> rows
SELECT m.seq, m.event_id, m.event_type, NULL, m.aggregate_id, NULL, NULL, ''::bytea, m.headers, {message_times},
       coalesce(t.retry_count, 0), t.error, t.processed_at IS NOT NULL
FROM {message} m JOIN {map} k ON k.seq = m.seq JOIN {theirs} t ON t.id = k.id
WHERE m.seq {in_seqs}

-- name: inbox.adopt.pending -> count
INSERT INTO {pending} (seq, due, key_hash, position, priority, attempts, last_error)
SELECT s.seq, {clock}, s.key_hash, s.position, s.priority, s.attempts, s.error
FROM unnest(:seqs::bigint[], :hashes::bigint[], :positions::bigint[], :priorities::smallint[], :attempts::integer[],
            :errors::text[]) AS s(seq, key_hash, position, priority, attempts, error)
ON CONFLICT DO NOTHING

-- name: inbox.adopt.dead -> count
INSERT INTO {dead} (seq, key_hash, position, priority, replayed, attempts, last_error, dead_at)
SELECT s.seq, s.key_hash, s.position, s.priority, false, s.attempts, s.error, {clock}
FROM unnest(:seqs::bigint[], :hashes::bigint[], :positions::bigint[], :priorities::smallint[], :attempts::integer[],
            :errors::text[]) AS s(seq, key_hash, position, priority, attempts, error)
ON CONFLICT DO NOTHING

-- name: inbox.adopt.free -> rows
-- Which nobody has locked in their table, now locked by us; and whether they still wait.
SELECT m.seq, t.processed_at IS NULL FROM {map} m JOIN {theirs} t ON t.id = m.id
WHERE m.seq {in_seqs} FOR UPDATE OF t SKIP LOCKED

-- name: inbox.adopt.there -> rows
SELECT m.seq FROM {map} m JOIN {theirs} t ON t.id = m.id WHERE m.seq {in_seqs}

-- name: inbox.adopt.unprocessed -> rows
-- Which still wait. In the transaction of the effect: who is at them is waited for.
SELECT m.seq FROM {map} m JOIN {theirs} t ON t.id = m.id
WHERE m.seq {in_seqs} AND t.processed_at IS NULL FOR UPDATE OF t

-- name: inbox.adopt.processed -> count
UPDATE {theirs} t SET processed_at = {now}, error = NULL
FROM {map} m WHERE m.id = t.id AND m.seq {in_seqs} AND t.processed_at IS NULL

-- name: inbox.adopt.report -> count
-- Their count of attempts and last error are ours. A dead letter has had all its attempts, whatever it died of.
UPDATE {theirs} t SET retry_count = w.attempts, error = {last_error}
FROM {map} m, (SELECT seq, attempts, last_error FROM {pending} WHERE seq {in_seqs}
               UNION ALL SELECT seq, greatest(attempts, {most}), last_error FROM {dead} WHERE seq {in_seqs}) w
WHERE m.seq = w.seq AND t.id = m.id AND t.processed_at IS NULL

-- name: inbox.adopt.done -> count
INSERT INTO {done} (seq, processed_at, attempts, waited)
SELECT m.seq, least(greatest({finished}, {first_time}), {last_time}), least(greatest(coalesce(t.retry_count, 0), 0), 65535),
       greatest(extract(epoch FROM least(greatest({finished}, {first_time}), {last_time})
                                   - least(greatest(v.received_at, {first_time}), {last_time})), 0)
FROM {map} m JOIN {theirs} t ON t.id = m.id JOIN {message} v ON v.seq = m.seq
WHERE m.seq {in_seqs} AND t.processed_at IS NOT NULL
ON CONFLICT DO NOTHING

-- name: inbox.purge.seen -> count
-- Ids whose rows we have forgotten: one that is unknown while its row is here could be accepted beside it.
DELETE FROM {seen} WHERE ctid = ANY(ARRAY(
  SELECT s.ctid FROM {seen} s
  WHERE s.seen_at < {ttl_ago} AND NOT EXISTS (SELECT 1 FROM {message} m WHERE m.event_id = s.event_id AND s.sender IN (m.sender, '*'))
  LIMIT :limit {skip_locked}))

-- name: inbox.adopt.reset -> count
UPDATE {theirs} t SET processed_at = NULL, retry_count = 0, error = NULL
FROM {map} m WHERE m.id = t.id AND m.seq {in_seqs}

-- name: inbox.adopt.seen -> rows
INSERT INTO {seen} (event_id, sender, seen_at)
SELECT e, :sender, {clock} FROM unnest(:event_ids::text[]) e ORDER BY e COLLATE "C"
ON CONFLICT DO NOTHING
RETURNING event_id
