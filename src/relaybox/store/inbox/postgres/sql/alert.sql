-- name: inbox.alert.open -> count
INSERT INTO {alert} (aggregate_id, first, last, told_at)
SELECT s.key, s.first, s.last, {clock}
FROM unnest(:keys::text[], :firsts::bigint[], :lasts::bigint[]) AS s(key, first, last)
ON CONFLICT DO NOTHING

-- name: inbox.alert.close -> count
DELETE FROM {alert} a USING unnest(:keys::text[], :firsts::bigint[]) AS s(key, first)
WHERE a.aggregate_id = s.key AND a.first = s.first

-- name: inbox.alert.notify -> rows
SELECT pg_notify('{alert_channel}', '')
