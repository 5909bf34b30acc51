-- name: inbox.status -> rows
-- Waiting, ever accepted, dead: counted while that is cheap, then the optimizer's estimate.
SELECT CASE WHEN p.n <= 10000 THEN p.n
            ELSE (SELECT greatest(table_rows, p.n) FROM information_schema.tables
                  WHERE table_schema = {database} AND table_name = '{pending_name}') END,
       CASE WHEN s.n <= 10000 THEN s.n
            ELSE (SELECT greatest(table_rows, s.n) FROM information_schema.tables
                  WHERE table_schema = {database} AND table_name = '{seen_name}') END,
       CASE WHEN d.n <= 10000 THEN d.n
            ELSE (SELECT greatest(table_rows, d.n) FROM information_schema.tables
                  WHERE table_schema = {database} AND table_name = '{dead_name}') END
FROM (SELECT count(*) AS n FROM (SELECT 1 FROM {pending} LIMIT 10001) x) p,
     (SELECT count(*) AS n FROM (SELECT 1 FROM {seen} LIMIT 10001) x) s,
     (SELECT count(*) AS n FROM (SELECT 1 FROM {dead} LIMIT 10001) x) d

-- name: inbox.status.pace -> rows
-- Seconds the oldest waiting message is here; of what was processed in the last minute (the last thousand at most) how
-- many, within how many seconds, and how long each was here on the average; processors alive.
SELECT (SELECT {age}
        FROM (SELECT min(seq) AS seq FROM {pending}) p JOIN {message} m ON m.seq = p.seq),
       l.n, timestampdiff(MICROSECOND, l.since, {clock}) / 1000000e0, l.waited,
       (SELECT count(*) FROM {instance} i WHERE i.expires_at >= {clock})
FROM (SELECT count(*) AS n, min(processed_at) AS since, avg(waited) AS waited
      FROM (SELECT processed_at, waited FROM {done} WHERE processed_at > {clock} - INTERVAL 60 SECOND
            ORDER BY processed_at DESC LIMIT 1000) x) l

-- name: inbox.status.read_only -> rows
SELECT @@global.read_only
