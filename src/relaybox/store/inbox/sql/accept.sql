-- name: inbox.accept.former -> rows
-- Of these ids, those that were kept without their sender: a duplicate from any sender.
SELECT s.event_id FROM {seen} s WHERE s.event_id {in_ids} AND s.sender = '*'

-- name: inbox.purge.former -> count
-- All of those were forgotten: nobody looks for them any more.
DELETE FROM {meta} WHERE name = 'former' AND NOT EXISTS (SELECT 1 FROM {seen} WHERE sender = '*')
