-- name: inbox.settle.still -> count
-- Before the commit: how the numbers by type change. No row: the mark is not there, the transaction was rolled back.
INSERT INTO {journal} (event_type, pending, processed, waited)
SELECT :event_type, -1, 1, round(f.waited * 1000000) FROM {done} f WHERE f.seq = :seq
