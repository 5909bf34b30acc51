-- slot: in_keys
IN (SELECT s.k FROM JSON_TABLE(:keys, '$[*]' COLUMNS (k varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
PATH '$')) s)
