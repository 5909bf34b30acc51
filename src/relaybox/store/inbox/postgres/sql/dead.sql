-- name: inbox.replay.pending -> count
-- Due at once, with fresh attempts. A number that has had its turn runs beside the sequence.
INSERT INTO {pending} (seq, due, key_hash, position, priority, replayed, attempts)
SELECT s.seq, {clock}, s.key_hash, s.position, s.priority, true, 0
FROM unnest(:seqs::bigint[], :hashes::bigint[], :positions::bigint[], :priorities::smallint[])
  AS s(seq, key_hash, position, priority)
ON CONFLICT DO NOTHING

-- name: inbox.purge.message -> count
-- The id stays, with its sender, its type and when it came. Never gone for a moment: it could be accepted in that.
UPDATE {message}
SET payload = NULL, headers = NULL, aggregate_type = NULL, aggregate_id = NULL, tenant_id = NULL, content_type = NULL
WHERE seq {in_seqs}
