-- name: cdc.publication -> count
-- Inserts alone: a purge would otherwise send every row it deletes through the slot.
CREATE PUBLICATION "{event_name}_cdc" FOR TABLE {event} WITH (publish = 'insert')

-- name: cdc.snapshot -> rows
-- What was written before the connector came, in order.
SELECT * FROM {event} ORDER BY seq

-- name: cdc.heartbeat -> rows
-- Something for the slot to confirm while nobody writes events. Without it, the WAL of all other tables is kept.
SELECT pg_logical_emit_message(false, 'relaybox.heartbeat', '')

-- name: cdc.facts -> rows
SELECT name, setting FROM pg_settings
WHERE name IN ('wal_level', 'max_replication_slots', 'max_wal_senders', 'max_slot_wal_keep_size')
UNION ALL SELECT 'role', current_user
UNION ALL SELECT 'replication', bool_or(rolname = current_user AND (rolsuper OR rolreplication)
                                        OR rolname = 'rds_replication' AND pg_has_role(oid, 'member'))::text FROM pg_roles
UNION ALL SELECT 'slots', count(*)::text FROM pg_replication_slots
UNION ALL SELECT 'senders', count(*)::text FROM pg_stat_replication
UNION ALL SELECT 'table.schema', relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass('{event}')
UNION ALL SELECT 'table.select', has_table_privilege(to_regclass('{event}'), 'SELECT')::text
UNION ALL SELECT 'publication', concat_ws(',', CASE WHEN pubinsert THEN 'insert' END, CASE WHEN pubupdate THEN 'update' END,
                                          CASE WHEN pubdelete THEN 'delete' END, CASE WHEN pubtruncate THEN 'truncate' END)
  FROM pg_publication WHERE pubname = '{event_name}_cdc'
UNION ALL SELECT 'published.'::text || schemaname::text || '.'::text || tablename::text, 'true'
  FROM pg_publication_tables WHERE pubname = '{event_name}_cdc'

-- name: cdc.slots -> rows
-- Logical slots of this database: name, whether somebody reads it, the WAL it keeps, and whether that is at risk.
SELECT slot_name, active, pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn()
                                               ELSE pg_current_wal_lsn() END, restart_lsn)::bigint, wal_status
FROM pg_replication_slots WHERE slot_type = 'logical' AND database = current_database() ORDER BY slot_name

-- name: cdc.unroutable -> rows
-- Of the newest events: those an outbox without cdc wrote, whose aggregate type is NULL.
SELECT count(*) FROM (SELECT aggregate_type FROM {event} ORDER BY seq DESC LIMIT 1000) e WHERE aggregate_type IS NULL
