-- name: inbox.alert.dead -> rows
-- The oldest dead letters that nobody was told of.
SELECT m.event_id, m.event_type, d.attempts, d.last_error
FROM {dead} d JOIN {message} m ON m.seq = d.seq WHERE d.told = false ORDER BY d.seq LIMIT :limit

-- name: inbox.alert.told -> count
UPDATE {dead} SET told = true WHERE told = false

-- name: inbox.alert.spans -> rows
-- The gaps that somebody was told of.
SELECT CONVERT(aggregate_id USING utf8mb4), first, last FROM {alert}

-- name: inbox.alert.open -> count
INSERT IGNORE INTO {alert} (aggregate_id, first, last, told_at)
SELECT CAST(s.k AS binary), s.f, s.l, {clock}
FROM JSON_TABLE({rows}, '$[*]' COLUMNS (k varchar(255) {text} PATH '$[0]', f bigint PATH '$[1]',
                                        l bigint PATH '$[2]')) s

-- name: inbox.alert.close -> count
DELETE a FROM JSON_TABLE({rows}, '$[*]' COLUMNS (k varchar(255) {text} PATH '$[0]', f bigint PATH '$[1]')) s
STRAIGHT_JOIN {alert} a ON a.aggregate_id = CAST(s.k AS binary) AND a.first = s.f
