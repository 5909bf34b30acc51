-- name: inbox.replay.pending -> count
-- Due at once, with fresh attempts. A number that has had its turn runs beside the sequence.
INSERT IGNORE INTO {pending} (seq, due, key_hash, position, priority, replayed, attempts)
SELECT r.seq, {clock}, r.key_hash, r.position, r.priority, true, 0
FROM JSON_TABLE({rows}, '$[*]' COLUMNS (seq bigint PATH '$[0]', key_hash bigint PATH '$[1]',
                                        position bigint PATH '$[2]', priority smallint PATH '$[3]')) r
