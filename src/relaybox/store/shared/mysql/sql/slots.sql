-- slot: clock
coalesce(CAST(:now AS datetime(6)), utc_timestamp(6))

-- slot: ttl
INTERVAL :ttl SECOND

-- slot: lease_time
INTERVAL :lease SECOND

-- slot: first_time
CAST('1000-01-01' AS datetime(6))

-- slot: never
CAST('9999-12-31' AS datetime(6))

-- slot: text
CHARACTER SET utf8mb4 COLLATE utf8mb4_bin

-- slot: database
coalesce(nullif('{namespace}', ''), database())

-- slot: migration_lock
-- GET_LOCK takes 64 characters, and a lock belongs to the server, not to a database.
concat('relaybox.migrate.', left(sha2(concat(coalesce(nullif('{namespace}', ''), database(), ''), '.{event_name}'), 256), 32))

-- slot: rows
-- In a session of a narrower character set the server would unescape the text into that one, and lose it.
CONVERT(:rows USING utf8mb4)

-- slot: seqs
-- Here and wherever rows are locked, a JSON_TABLE is in a query of its own: MySQL refuses to lock one (error 3569).
(SELECT j.seq FROM JSON_TABLE(:seqs, '$[*]' COLUMNS (seq bigint PATH '$')) j) s

-- slot: held
(SELECT j.seq, j.token FROM JSON_TABLE(:held, '$[*]' COLUMNS (seq bigint PATH '$[0]', token bigint PATH '$[1]')) j) s

-- slot: last_number
last_insert_id()

-- slot: in_seqs
-- Where nothing is locked.
IN (SELECT s.seq FROM {seqs})

-- slot: pending_rows
{seqs} STRAIGHT_JOIN {pending} t FORCE INDEX (PRIMARY) ON t.seq = s.seq

-- slot: dead_rows
{seqs} STRAIGHT_JOIN {dead} t FORCE INDEX (PRIMARY) ON t.seq = s.seq

-- slot: these
true

-- slot: from_rows
t FROM

-- slot: session
connection_id()
