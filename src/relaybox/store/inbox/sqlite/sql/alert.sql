-- name: inbox.alert.open -> count
INSERT INTO {alert} (aggregate_id, first, last, told_at)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), {clock}
FROM json_each(:rows) WHERE true
ON CONFLICT DO NOTHING

-- name: inbox.alert.close -> count
DELETE FROM {alert}
WHERE (aggregate_id, first) IN (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:rows))
