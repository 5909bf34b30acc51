-- name: outbox.status -> rows
-- Waiting now, waiting for later, claimed, failed at least once, dead, seconds since the oldest that waits or is claimed
-- became due.
SELECT count(CASE WHEN owner IS NULL AND (due <= {clock} OR since IS NOT NULL) THEN 1 END),
       count(CASE WHEN owner IS NULL AND due > {clock} AND since IS NULL THEN 1 END),
       count(owner),
       count(CASE WHEN attempts > CASE WHEN owner IS NULL THEN 0 ELSE 1 END THEN 1 END),
       (SELECT count(*) FROM {dead}),
       greatest(timestampdiff(MICROSECOND, min(CASE WHEN since IS NOT NULL OR due <= {clock}
                                                    THEN least(coalesce(since, due), due) END), {clock}), 0) / 1000000e0
FROM {pending}

-- name: outbox.status.events -> rows
-- Exact while it is cheap, then the optimizer's estimate.
SELECT CASE WHEN c.n <= 10000 THEN c.n ELSE greatest(c.n, coalesce(
         (SELECT t.table_rows FROM information_schema.tables t
          WHERE t.table_schema = {database} AND t.table_name = '{event_name}'), 0)) END
FROM (SELECT count(*) AS n FROM (SELECT 1 FROM {event} LIMIT 10001) f) c

-- name: outbox.status.failing -> rows
-- Waiting events whose last try failed, be it nobody's fault.
SELECT count(last_error) FROM {pending}

-- name: outbox.status.waiting -> rows
-- What is due, in the order it was written, for people to look at: nothing is claimed or locked.
SELECT e.seq, e.event_id, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant_id, e.content_type,
       e.payload, e.headers, e.occurred_at, e.deliver_at, e.created_at
FROM {pending} p JOIN {event} e ON e.seq = p.seq
WHERE p.owner IS NULL AND {ready} ORDER BY p.seq LIMIT :limit
