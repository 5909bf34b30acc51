-- name: inbox.settle.mark -> count
-- Processed, in the transaction of the effect: the row under our token goes, and with it the claim; another processor
-- passes over it from here on. No row: the claim was lost, and nothing may be done. The setting is there for as long as
-- the mark is: until the transaction ends, or is rolled back to before it.
WITH gone AS (
  DELETE FROM {pending}
  WHERE seq = :seq AND token = :token AND (SELECT set_config('relaybox.mark', 'here', true)) IS NOT NULL
  RETURNING seq, attempts),
marked AS (
  INSERT INTO {done} (seq, processed_at, attempts, waited)
  SELECT seq, {clock}, attempts, extract(epoch FROM {clock} - :received::timestamptz)
  FROM gone
  {done_again}
  RETURNING waited)
INSERT INTO {journal} (event_type, pending, processed, waited)
SELECT :event_type::text, -1, 1, round(waited * 1e6::float8) FROM marked

-- name: inbox.settle.still -> rows
-- Before the commit, in the same round trip where that can be: an error unless the mark is in this transaction.
SELECT CAST(CASE current_setting('relaybox.mark', true) WHEN 'here' THEN '1' ELSE 'relaybox_mark_is_gone' END AS integer)

-- name: inbox.settle.lock -> rows
-- Of a batch what is still ours; from here on nobody else's.
SELECT p.seq FROM unnest(:seqs::bigint[], :tokens::bigint[]) AS s(seq, token)
JOIN {pending} p ON p.seq = s.seq AND p.token = s.token
FOR UPDATE OF p

-- name: inbox.settle.mark_all -> count
-- The same for what a batch has done.
WITH gone AS (
  DELETE FROM {pending} p USING unnest(:seqs::bigint[], :tokens::bigint[]) AS s(seq, token)
  WHERE p.seq = s.seq AND p.token = s.token
  RETURNING p.seq, p.attempts),
timed AS MATERIALIZED (
  SELECT g.seq, g.attempts, m.event_type,
         coalesce({age}, 0) AS waited
  FROM gone g LEFT JOIN {message} m ON m.seq = g.seq),
marked AS (
  INSERT INTO {done} (seq, processed_at, attempts, waited)
  SELECT seq, {clock}, attempts, waited FROM timed
  {done_again})
INSERT INTO {journal} (event_type, pending, processed, waited)
SELECT event_type, -count(*), count(*), {all_waited} FROM timed t
WHERE event_type IS NOT NULL GROUP BY event_type

-- name: inbox.settle.retry -> count
UPDATE {pending} p
SET due = {clock} + make_interval(secs => s.delay), last_error = s.error,
    attempts = p.attempts - s.uncounted, strikes = 0, token = NULL, owner = NULL, claimed_at = NULL
FROM unnest(:seqs::bigint[], :delays::float8[], :errors::text[], :uncounted::integer[])
  AS s(seq, delay, error, uncounted)
WHERE p.seq = s.seq

-- name: inbox.settle.dead -> count
INSERT INTO {dead} (seq, key_hash, position, priority, replayed, attempts, last_error, dead_at)
SELECT p.seq, p.key_hash, p.position, p.priority, p.replayed, p.attempts, s.error, {clock}
FROM unnest(:seqs::bigint[], :errors::text[]) AS s(seq, error) JOIN {pending} p ON p.seq = s.seq
ON CONFLICT (seq) DO UPDATE
SET attempts = excluded.attempts, last_error = excluded.last_error, dead_at = excluded.dead_at, told = false
