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
