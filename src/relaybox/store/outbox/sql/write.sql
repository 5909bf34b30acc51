-- name: outbox.write.stored -> rows
-- Which of these ids are stored: the answer to a commit whose reply was lost.
SELECT event_id FROM {event} WHERE event_id {in_ids}
