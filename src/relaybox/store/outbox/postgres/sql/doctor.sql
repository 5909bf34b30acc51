-- name: doctor.settings -> rows
SELECT name, setting FROM pg_settings
WHERE name IN ('server_version', 'server_version_num', 'server_encoding', 'fsync', 'full_page_writes',
               'synchronous_commit', 'transaction_read_only', 'autovacuum', 'track_counts', 'max_connections')

-- name: doctor.server -> rows
SELECT 'backend_pid', pg_backend_pid()::text
UNION ALL SELECT 'in_recovery', pg_is_in_recovery()::text
UNION ALL SELECT 'connections', sum(numbackends)::text FROM pg_stat_database

-- name: doctor.clock -> rows
SELECT 'clock', extract(epoch FROM clock_timestamp())::text

-- name: doctor.sessions -> rows
-- Ages in seconds. Sessions of other roles show no times to a role without pg_read_all_stats.
SELECT 'longest_transaction', extract(epoch FROM max(clock_timestamp() - xact_start))::text
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND state NOT LIKE 'idle in transaction%'
UNION ALL
SELECT 'longest_idle_in_transaction', extract(epoch FROM max(clock_timestamp() - state_change))::text
FROM pg_stat_activity
WHERE datname = current_database() AND state LIKE 'idle in transaction%'
UNION ALL
SELECT 'oldest_prepared', extract(epoch FROM max(clock_timestamp() - prepared))::text
FROM pg_prepared_xacts WHERE database = current_database()

-- name: doctor.pending -> rows
SELECT 'pending.dead_tuples', n_dead_tup::text FROM pg_stat_all_tables WHERE relid = to_regclass('{pending}')
UNION ALL
SELECT 'pending.live_tuples', n_live_tup::text FROM pg_stat_all_tables WHERE relid = to_regclass('{pending}')
UNION ALL
SELECT 'pending.autovacuum', CASE WHEN reloptions && ARRAY['autovacuum_enabled=false', 'autovacuum_enabled=off']
                                  THEN 'off' ELSE 'on' END
FROM pg_class WHERE oid = to_regclass('{pending}')

-- name: doctor.claims -> rows
-- Claims whose process has signed off, and claims whose process fell silent: nobody has freed them yet.
SELECT 'claims.unowned', coalesce(sum(cardinality(c.items)), 0)::text FROM {claim} c
WHERE c.owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {instance} i WHERE i.id = c.owner)
UNION ALL
SELECT 'claims.silent', coalesce(sum(cardinality(c.items)), 0)::text FROM {claim} c JOIN {instance} i ON i.id = c.owner
WHERE i.expires_at < clock_timestamp()
