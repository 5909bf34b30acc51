-- name: outbox.status -> rows
-- Waiting now, waiting for later, claimed, failed at least once, dead, seconds since the oldest that waits or is claimed
-- became due.
SELECT count(CASE WHEN owner IS NULL AND (due <= c.now OR since IS NOT NULL) THEN 1 END),
       count(CASE WHEN owner IS NULL AND due > c.now AND since IS NULL THEN 1 END),
       count(owner),
       count(CASE WHEN attempts > CASE WHEN owner IS NULL THEN 0 ELSE 1 END THEN 1 END),
       (SELECT count(*) FROM {dead}),
       (max(c.now) - min(CASE WHEN since IS NOT NULL OR due <= c.now THEN min(coalesce(since, due), due, c.now) END))
         / 1000000.0
FROM {pending} CROSS JOIN (SELECT {clock} AS now) c

-- name: outbox.status.events -> rows
-- Exact while it is cheap, then an estimate from the ends of the key.
SELECT CASE WHEN n <= 10000 THEN n ELSE (SELECT max(seq) FROM {event}) - (SELECT min(seq) FROM {event}) + 1 END
FROM (SELECT count(*) AS n FROM (SELECT 1 FROM {event} LIMIT 10001))
