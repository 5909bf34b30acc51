-- name: inbox.status -> rows
-- Waiting, ever accepted, dead: counted while that is cheap, then the totals, and the last number given.
SELECT CASE WHEN p.n <= 10000 THEN p.n ELSE (SELECT sum(pending) FROM {stats}) END,
       CASE WHEN s.n <= 10000 THEN s.n
            ELSE max(s.n, coalesce((SELECT seq FROM sqlite_sequence WHERE name = '{message_name}'), 0)) END,
       CASE WHEN d.n <= 10000 THEN d.n ELSE (SELECT sum(dead) FROM {stats}) END
FROM (SELECT count(*) AS n FROM (SELECT 1 FROM {pending} LIMIT 10001)) p,
     (SELECT count(*) AS n FROM (SELECT 1 FROM {seen} LIMIT 10001)) s,
     (SELECT count(*) AS n FROM (SELECT 1 FROM {dead} LIMIT 10001)) d

-- name: inbox.status.pace -> rows
-- Seconds the oldest waiting message is here; of what was processed in the last minute (the last thousand at most) how
-- many, within how many seconds, and how long each was here on the average; processors alive.
WITH lately AS (
  SELECT processed_at, waited FROM {done} WHERE processed_at > {clock} - 60000000 ORDER BY processed_at DESC LIMIT 1000)
SELECT (SELECT {age}
        FROM (SELECT min(seq) AS seq FROM {pending}) p JOIN {message} m ON m.seq = p.seq),
       (SELECT count(*) FROM lately),
       (SELECT ({clock} - min(processed_at)) / 1000000.0 FROM lately),
       (SELECT avg(waited) FROM lately),
       (SELECT count(*) FROM {instance} i WHERE i.expires_at >= {clock})

-- name: inbox.status.types -> rows
-- By type: waiting, processed, dead, and how long processed ones were here on the average.
SELECT CAST(event_type AS blob), pending, processed, dead, avg_processing_sec FROM {stats} ORDER BY event_type

-- name: inbox.status.read_only -> rows
-- A file that cannot be written refuses BEGIN IMMEDIATE already.
SELECT 0
