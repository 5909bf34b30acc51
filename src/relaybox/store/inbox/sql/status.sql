-- name: inbox.status.types -> rows
-- By type: waiting, processed, dead, and how long processed ones were here on the average.
SELECT event_type, pending, processed, dead, avg_processing_sec FROM {stats} ORDER BY event_type
