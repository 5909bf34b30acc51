-- name: inbox.bury.find -> rows
-- What was just accepted, by its ids.
SELECT m.event_id, p.seq
FROM JSON_TABLE(CONVERT(:event_ids USING utf8mb4), '$[*]' COLUMNS (
  event_id varchar(255) {text} PATH '$' ERROR ON ERROR)) s
STRAIGHT_JOIN {message} m ON m.event_id = s.event_id
STRAIGHT_JOIN {pending} p ON p.seq = m.seq
WHERE CAST(m.event_id AS binary) = CAST(s.event_id AS binary) AND CAST(m.sender AS binary) = :sender
