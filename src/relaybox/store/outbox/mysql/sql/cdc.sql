-- name: cdc.snapshot -> rows
-- What was written before the connector came, in order.
SELECT * FROM {event} ORDER BY seq

-- name: cdc.facts -> rows
SHOW GLOBAL VARIABLES
WHERE Variable_name IN ('version', 'log_bin', 'binlog_format', 'binlog_row_image', 'binlog_expire_logs_seconds',
                        'expire_logs_days')

-- name: cdc.privileges -> rows
-- Given to the account itself and for the whole server; a role's are not among them.
SELECT privilege_type FROM information_schema.user_privileges
WHERE grantee = concat('''', substring_index(current_user(), '@', 1), '''@''', substring_index(current_user(), '@', -1), '''')

-- name: cdc.unroutable -> rows
-- Of the newest events: those an outbox without cdc wrote, whose aggregate type is NULL.
SELECT count(*) FROM (SELECT aggregate_type FROM {event} ORDER BY seq DESC LIMIT 1000) e WHERE aggregate_type IS NULL
