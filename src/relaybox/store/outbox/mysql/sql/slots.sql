-- slot: one_more
-- Attempts with this one. They end somewhere, and may be anything where a row is not ours.
least(greatest(p.attempts, 0), 65534) + 1

-- slot: once
ON DUPLICATE KEY UPDATE seq = VALUES(seq)

-- slot: keys
JSON_TABLE(:keys, '$[*]' COLUMNS (key_hash bigint PATH '$')) k

-- slot: ids
(SELECT j.event_id
 FROM JSON_TABLE(CONVERT(:event_ids USING utf8mb4), '$[*]' COLUMNS (event_id varchar(36) {text} PATH '$')) j) s

-- slot: hashed
JSON_TABLE({rows}, '$[*]' COLUMNS (seq bigint PATH '$[0]', key_hash bigint PATH '$[1]')) s
