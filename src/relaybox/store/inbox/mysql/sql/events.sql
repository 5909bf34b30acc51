-- name: inbox.events.ids -> rows
SELECT m.seq
FROM JSON_TABLE(CONVERT(:event_ids USING utf8mb4), '$[*]' COLUMNS (event_id varchar(768) {text} PATH '$')) s
STRAIGHT_JOIN {message} m ON m.event_id = s.event_id
WHERE CAST(m.event_id AS binary) = CAST(s.event_id AS binary) AND {of_sender}

-- name: inbox.events.read -> rows
-- Without their payloads. No index is named: the messages of an adopted table are a view.
SELECT t.seq, {without_payload} FROM {seqs} STRAIGHT_JOIN {message} t ON t.seq = s.seq ORDER BY t.seq
