-- slot: clock
-- It ticks in milliseconds; julianday() is a float whose error is far below one, so rounding gives the exact tick.
coalesce(:now, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS integer) * 1000)

-- slot: ttl
CAST(round(:ttl * 1000000.0) AS integer)

-- slot: lease_time
CAST(round(:lease * 1000000.0) AS integer)

-- slot: never
9000000000000000000

-- slot: skip_locked
-- Nobody else writes while a transaction does.

-- slot: for_update

-- slot: in_seqs
IN (SELECT value FROM json_each(:seqs))

-- slot: in_owners
IN (SELECT value FROM json_each(:owners))

-- slot: in_ids
IN (SELECT value FROM json_each(:event_ids))

-- slot: in_keys
IN (SELECT value FROM json_each(:keys))

-- slot: greatest
max

-- slot: least
min

-- slot: held
(SELECT p.seq FROM json_each(:held) h CROSS JOIN {pending} p
 ON p.seq = json_extract(h.value, '$[0]') AND p.token = json_extract(h.value, '$[1]'))

-- slot: last_number
last_insert_rowid()

-- slot: size
-- In bytes, of bytes; they are not read for it.
length

-- slot: server_version
sqlite_version()

-- slot: session
0
