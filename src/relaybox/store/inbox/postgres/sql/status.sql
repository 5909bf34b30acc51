-- name: inbox.status -> rows
-- Waiting, dead, ever accepted: counted while that is cheap, then the planner's estimate.
SELECT CASE WHEN p.n <= 10000 THEN p.n
            ELSE (SELECT greatest(reltuples, p.n)::bigint FROM pg_class WHERE oid = to_regclass('{pending}')) END,
       CASE WHEN s.n <= 10000 THEN s.n
            ELSE (SELECT greatest(max(reltuples), s.n)::bigint FROM pg_class
                  WHERE oid IN (to_regclass('{message}'), to_regclass('{seen}'))) END,
       CASE WHEN d.n <= 10000 THEN d.n
            ELSE (SELECT greatest(reltuples, d.n)::bigint FROM pg_class WHERE oid = to_regclass('{dead}')) END
FROM (SELECT count(*) AS n FROM (SELECT 1 FROM {pending} LIMIT 10001) x) p,
     (SELECT count(*) AS n FROM (SELECT 1 FROM {seen} LIMIT 10001) x) s,
     (SELECT count(*) AS n FROM (SELECT 1 FROM {dead} LIMIT 10001) x) d

-- name: inbox.status.pace -> rows
-- Seconds the oldest waiting message is here; of what was processed in the last minute (the last thousand at most) how
-- many, within how many seconds, and how long each was here on the average; processors alive.
WITH clock AS MATERIALIZED (SELECT {clock} AS now),
lately AS MATERIALIZED (
  SELECT processed_at, waited FROM {done}
  WHERE processed_at > (SELECT now - interval '1 minute' FROM clock) ORDER BY processed_at DESC LIMIT 1000)
SELECT (SELECT extract(epoch FROM c.now - m.received_at)::float8
        FROM (SELECT seq FROM {pending} ORDER BY seq LIMIT 1) p JOIN {message} m ON m.seq = p.seq),
       (SELECT count(*) FROM lately),
       (SELECT extract(epoch FROM c.now - min(processed_at))::float8 FROM lately),
       (SELECT avg(least(greatest(waited, -1e12::float8), 1e12::float8)) FROM lately),
       (SELECT count(*) FROM {instance} i WHERE i.expires_at >= c.now)
FROM clock c

-- name: inbox.status.read_only -> rows
SELECT current_setting('transaction_read_only')::boolean
