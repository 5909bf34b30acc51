-- name: doctor.settings -> rows
-- GLOBAL: relaybox sets what it needs on its own sessions, the application's sessions start from these.
SHOW GLOBAL VARIABLES
WHERE Variable_name IN ('version', 'log_bin', 'binlog_format', 'innodb_flush_log_at_trx_commit', 'sync_binlog',
                        'innodb_doublewrite', 'sql_mode', 'transaction_isolation', 'tx_isolation', 'wsrep_on',
                        'read_only', 'max_connections', 'max_allowed_packet', 'time_zone')

-- name: doctor.server -> rows
SHOW GLOBAL STATUS WHERE Variable_name IN ('Threads_connected')

-- name: doctor.clock -> rows
SELECT 'clock', timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6)) / 1000000e0

-- name: doctor.sessions -> rows
-- Needs the PROCESS privilege. trx_started is in the server's own time zone, whatever the session says.
SELECT 'longest_transaction',
       timestampdiff(SECOND, min(trx_started), convert_tz(utc_timestamp(), '+00:00', 'SYSTEM'))
FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> connection_id()

-- name: doctor.collations -> rows
SELECT concat('collation.', column_name), collation_name FROM information_schema.columns
WHERE table_schema = {database} AND table_name = '{event_name}'
  AND column_name IN ('event_id', 'event_type', 'aggregate_type', 'aggregate_id', 'tenant_id')

-- name: doctor.engines -> rows
SELECT concat('engine.', table_name), engine FROM information_schema.tables
WHERE table_schema = {database} AND table_name IN ('{event_name}', '{pending_name}', '{dead_name}')

-- name: doctor.claims -> rows
SELECT 'claims.unowned', count(*) FROM {pending} p
WHERE p.owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {instance} i WHERE i.id = p.owner)
UNION ALL
SELECT 'claims.silent', count(*) FROM {pending} p JOIN {instance} i ON i.id = p.owner
WHERE i.expires_at < utc_timestamp(6)
