-- name: inbox.bury.find -> rows
-- What was just accepted, by its ids.
SELECT m.event_id, p.seq FROM {message} m JOIN {pending} p ON p.seq = m.seq
WHERE m.event_id IN (SELECT value FROM json_each(:event_ids))
