-- name: outbox.events.ids -> rows
SELECT e.seq FROM {ids} STRAIGHT_JOIN {event} e ON e.event_id = s.event_id

-- name: outbox.events.lock -> rows
-- Nobody purges or replays these beside us.
SELECT e.seq, coalesce(e.aggregate_id, e.event_id) FROM {seqs} STRAIGHT_JOIN {event} e ON e.seq = s.seq
ORDER BY e.seq FOR UPDATE
