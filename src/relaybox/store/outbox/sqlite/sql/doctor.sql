-- name: doctor.settings -> rows
SELECT 'version', sqlite_version()
UNION ALL SELECT 'file', file FROM pragma_database_list WHERE name = 'main'
UNION ALL SELECT 'synchronous', synchronous FROM pragma_synchronous
UNION ALL SELECT 'encoding', encoding FROM pragma_encoding

-- name: doctor.journal -> rows
SELECT 'journal_mode', journal_mode FROM pragma_journal_mode

-- name: doctor.integrity -> rows
-- The first damage found, or 'ok'. Reads the whole file once.
SELECT 'quick_check', quick_check FROM pragma_quick_check(1)

-- name: doctor.clock -> rows
SELECT 'clock', (julianday('now') - 2440587.5) * 86400.0

-- name: doctor.claims -> rows
SELECT 'claims.unowned', count(*) FROM {pending} p
WHERE p.owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {instance} i WHERE i.id = p.owner)
UNION ALL
SELECT 'claims.silent', count(*) FROM {pending} p JOIN {instance} i ON i.id = p.owner
WHERE i.expires_at < CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS integer) * 1000
