-- slot: keys
JSON_TABLE(:keys, '$[*]' COLUMNS (key_hash bigint PATH '$')) k

-- slot: ids
JSON_TABLE(CONVERT(:event_ids USING utf8mb4), '$[*]' COLUMNS (event_id varchar(36) {text} PATH '$')) s

-- slot: hashed
JSON_TABLE({rows}, '$[*]' COLUMNS (seq bigint PATH '$[0]', key_hash bigint PATH '$[1]')) s
