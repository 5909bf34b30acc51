-- name: outbox.status -> rows
-- Waiting now, waiting for later, claimed, failed at least once, dead, seconds the oldest due row has waited.
SELECT p.due + b.waiting, p.later, b.claimed, p.retrying + b.retrying, (SELECT count(*) FROM {dead}),
       coalesce(extract(epoch FROM c.now - least(p.oldest, b.oldest)), 0)::float8
FROM (SELECT coalesce(:now, clock_timestamp()) AS now) c
CROSS JOIN LATERAL (
  SELECT count(*) FILTER (WHERE due <= c.now) AS due, count(*) FILTER (WHERE due > c.now) AS later,
         count(*) FILTER (WHERE attempts > 0) AS retrying, min(due) FILTER (WHERE due <= c.now) AS oldest
  FROM {pending}) p
CROSS JOIN LATERAL (
  SELECT coalesce(sum(cardinality(items)) FILTER (WHERE owner IS NULL), 0)::bigint AS waiting,
         coalesce(sum(cardinality(items)) FILTER (WHERE owner IS NOT NULL), 0)::bigint AS claimed,
         coalesce(sum((SELECT count(*) FROM unnest(items) AS item WHERE item % 65536 > 1)), 0)::bigint AS retrying,
         min(until) FILTER (WHERE owner IS NULL) AS oldest
  FROM {claim}) b

-- name: outbox.status.events -> rows
-- An estimate: counting ten million finished rows is not worth a status line.
SELECT greatest(reltuples, 0)::bigint FROM pg_class
WHERE oid = to_regclass('{event}')

-- name: outbox.status.notify -> rows
-- Only when somebody is there to hear it; no row means nobody is.
SELECT pg_notify('{channel}', '')
FROM (SELECT 1 FROM {instance} WHERE expires_at >= coalesce(:now, clock_timestamp()) LIMIT 1) AS listener
