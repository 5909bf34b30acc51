-- A backfill adds a group to what open events require. One job per group, under a lease; what it has done and how far it
-- is are written in one transaction, while the group's row is locked: so it can be stopped, killed or cancelled by anybody
-- at any time, and goes on where it was.

-- name: topic.backfill.lock -> rows
SELECT state, backfill_state, backfill_lease > {clock}, first_seq
FROM {group} WHERE id = :group FOR NO KEY UPDATE

-- name: topic.backfill.extent -> rows
SELECT count(*), coalesce(max(seq), 0) FROM {mark} WHERE completed_at IS NULL AND seq >= :first

-- name: topic.backfill.begin -> count
UPDATE {group}
SET backfill_state = 'in_progress', backfill_seq = :seq, backfill_until = :until, backfill_total = :total,
    backfill_done = 0, backfill_rate = 0, backfill_token = :token,
    backfill_lease = n.at + :lease::interval, backfill_started_at = n.at, backfill_ended_at = NULL, backfill_error = NULL
FROM (SELECT {clock} AS at) n
WHERE id = :group

-- name: topic.backfill.resume -> count
UPDATE {group}
SET backfill_state = 'in_progress', backfill_token = :token, backfill_rate = 0,
    backfill_lease = {clock} + :lease::interval, backfill_ended_at = NULL, backfill_error = NULL
WHERE id = :group

-- name: topic.backfill.hold -> rows
-- Also the probe: a small committed write to a busy database takes what everybody's takes.
UPDATE {group}
SET backfill_lease = {clock} + :lease::interval, backfill_rate = :rate
WHERE id = :group AND backfill_token = :token AND backfill_state = 'in_progress' AND state IN ({required_states})
RETURNING backfill_seq, backfill_until

-- name: topic.backfill.require -> count
WITH p AS MATERIALIZED (
  SELECT seq FROM {mark}
  WHERE seq = ANY(:seqs::bigint[]) AND completed_at IS NULL AND (required | done) & (1::bigint << :bit::integer) = 0
  ORDER BY seq FOR UPDATE)
UPDATE {mark} m SET required = m.required | (1::bigint << :bit::integer) FROM p WHERE m.seq = p.seq

-- name: topic.backfill.require_wide -> count
WITH p AS MATERIALIZED (
  SELECT m.seq FROM {mark} m
  WHERE m.seq = ANY(:seqs::bigint[]) AND m.completed_at IS NULL AND NOT m.required @> ARRAY[:group::integer]
    AND NOT EXISTS (SELECT 1 FROM {ack} a WHERE a.seq = m.seq AND a.group_id = :group::integer)
  ORDER BY m.seq FOR UPDATE)
UPDATE {mark} m SET required = array_append(m.required, :group::integer) FROM p WHERE m.seq = p.seq

-- name: topic.backfill.advance -> count
UPDATE {group}
SET backfill_seq = :seq, backfill_done = backfill_done + :added,
    backfill_state = CASE WHEN :ended THEN 'completed' ELSE backfill_state END,
    backfill_rate = CASE WHEN :ended THEN 0 ELSE backfill_rate END,
    backfill_token = CASE WHEN :ended THEN NULL ELSE backfill_token END,
    backfill_ended_at = CASE WHEN :ended THEN {clock} END
WHERE id = :group

-- name: topic.backfill.end -> count
-- From any process, and whatever it was doing: its next batch finds that it is no longer its turn.
UPDATE {group}
SET backfill_state = :state, backfill_error = :error, backfill_token = NULL, backfill_lease = NULL, backfill_rate = 0,
    backfill_ended_at = {clock}
WHERE id = :group AND backfill_state = 'in_progress' AND (:token::bigint IS NULL OR backfill_token = :token::bigint)

-- name: topic.backfill.again -> count
-- A group that lives again is to be added to what is open: a job that nobody has yet.
UPDATE {group}
SET backfill_state = 'in_progress', backfill_seq = first_seq, backfill_until = m.last, backfill_total = m.total,
    backfill_done = 0, backfill_rate = 0, backfill_token = NULL, backfill_lease = NULL,
    backfill_started_at = {clock}, backfill_ended_at = NULL, backfill_error = NULL
FROM (SELECT count(*) AS total, coalesce(max(seq), 0) AS last FROM {mark} WHERE completed_at IS NULL) m
WHERE id = :group

-- name: topic.backfill.leave -> count
UPDATE {group} SET backfill_token = NULL, backfill_lease = NULL
WHERE id = :group AND backfill_state = 'in_progress' AND backfill_token = :token

-- name: topic.backfill.show -> rows
SELECT backfill_state, backfill_done, backfill_total, backfill_rate, backfill_error, state
FROM {group} WHERE id = :group
