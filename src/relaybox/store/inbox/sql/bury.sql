-- name: inbox.bury.find -> rows
-- What was just accepted of a sender, by its ids.
SELECT m.event_id, p.seq FROM {message} m JOIN {pending} p ON p.seq = m.seq
WHERE m.event_id {in_ids} AND m.sender = :sender
