-- name: inbox.adopt.theirs -> count
CREATE VIEW {theirs} AS SELECT {their_columns} FROM {their_table} t

-- name: inbox.adopt.stats -> count
CREATE VIEW {stats} AS
SELECT m.event_type, count(p.seq) AS pending, count(f.seq) AS processed, count(d.seq) AS dead,
       avg(f.waited) AS avg_processing_sec
FROM {message} m
LEFT JOIN {pending} p ON p.seq = m.seq
LEFT JOIN {done} f ON f.seq = m.seq
LEFT JOIN {dead} d ON d.seq = m.seq
GROUP BY m.event_type

-- name: inbox.drop.view -> count
DROP VIEW IF EXISTS {gone}

-- name: inbox.drop.table -> count
DROP TABLE IF EXISTS {gone}
