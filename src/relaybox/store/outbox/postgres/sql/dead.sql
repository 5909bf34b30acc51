-- name: outbox.dead.replay -> rows
-- Back to the queue with fresh attempts; the old error stays readable until the next outcome. Not one with a number that
-- no claim can have.
WITH gone AS (
  DELETE FROM {dead} WHERE seq {in_seqs} AND dead_at <= :cutoff AND seq BETWEEN 1 AND 140737488355327
  RETURNING seq, last_error)
INSERT INTO {pending} (seq, due, key_hash, attempts, tenant, last_error, since)
SELECT e.seq, {clock}, {hash}(coalesce(e.aggregate_id, e.event_id)), 0, coalesce(e.tenant_id, ''), gone.last_error,
       {clock}
FROM gone JOIN {event} e ON e.seq = gone.seq
{once}
RETURNING seq
