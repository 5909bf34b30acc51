-- name: inbox.drop.alive -> rows
SELECT count(*) FROM {instance} WHERE expires_at >= {clock}
