-- name: outbox.status -> rows
-- Waiting now, waiting for later, claimed, failed at least once, dead, seconds since the oldest that waits or is claimed
-- became due.
SELECT p.due + b.waiting, p.later, b.claimed, p.retrying + b.retrying, (SELECT count(*) FROM {dead}),
       extract(epoch FROM c.now - greatest(least(p.oldest, b.oldest, c.now), {first_time}))::float8
FROM (SELECT {clock} AS now) c
CROSS JOIN LATERAL (
  SELECT count(*) FILTER (WHERE due <= c.now OR since IS NOT NULL) AS due,
         count(*) FILTER (WHERE due > c.now AND since IS NULL) AS later,
         count(*) FILTER (WHERE attempts > 0) AS retrying,
         min(least(since, due)) FILTER (WHERE due <= c.now OR since IS NOT NULL) AS oldest
  FROM {pending}) p
CROSS JOIN LATERAL (
  SELECT coalesce(sum(cardinality(items)) FILTER (WHERE owner IS NULL), 0)::bigint AS waiting,
         coalesce(sum(cardinality(items)) FILTER (WHERE owner IS NOT NULL), 0)::bigint AS claimed,
         coalesce(sum((SELECT count(*) FROM unnest(items) AS item WHERE item % 65536::bigint > 1)), 0)::bigint AS retrying,
         min(coalesce(since, claimed_at, until)) AS oldest
  FROM {claim}) b

-- name: outbox.status.events -> rows
-- Exact while it is cheap, then the planner's estimate: counting ten million rows is not worth a status line.
SELECT CASE WHEN c.n <= 10000 THEN c.n
            ELSE (SELECT greatest(reltuples, c.n)::bigint FROM pg_class WHERE oid = to_regclass('{event}')) END
FROM (SELECT count(*) AS n FROM (SELECT 1 FROM {event} LIMIT 10001) f) c

-- name: outbox.status.waiting -> rows
-- What is due, in the order it was written, for people to look at: nothing is claimed or locked.
WITH clock AS MATERIALIZED (SELECT {clock} AS now)
SELECT e.seq, {event_columns}
FROM (
  (SELECT seq FROM {pending} WHERE due <= (SELECT now FROM clock) OR since IS NOT NULL ORDER BY seq LIMIT :limit)
  UNION ALL
  (SELECT item / 65536 FROM {claim} c, unnest(c.items) AS item
   WHERE c.owner IS NULL ORDER BY 1 LIMIT :limit)
  ORDER BY 1 LIMIT :limit) w
JOIN {event} e ON e.seq = w.seq
ORDER BY e.seq
