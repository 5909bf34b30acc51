-- name: inbox.journal.accepted -> count
INSERT INTO {journal} (event_type, pending)
SELECT r.event_type, r.pending
FROM JSON_TABLE({rows}, '$[*]' COLUMNS (event_type varchar(255) {text} PATH '$[0]' ERROR ON ERROR,
                                        pending bigint PATH '$[1]')) r

-- name: inbox.journal.add -> count
-- In the order of types, so that no two wait for each other.
INSERT INTO {totals} (event_type, pending, processed, dead, waited)
SELECT j.event_type, coalesce(sum(j.pending), 0), coalesce(sum(j.processed), 0), coalesce(sum(j.dead), 0),
       least(greatest(coalesce(sum(j.waited), 0), -4000000000000000000), 4000000000000000000)
FROM {seqs} STRAIGHT_JOIN {journal} j FORCE INDEX (PRIMARY) ON j.id = s.seq
GROUP BY j.event_type ORDER BY j.event_type
ON DUPLICATE KEY UPDATE
  pending = {totals}.pending + VALUES(pending), processed = {totals}.processed + VALUES(processed),
  dead = {totals}.dead + VALUES(dead), waited = least(greatest({totals}.waited + VALUES(waited), -4000000000000000000), 4000000000000000000)

-- name: inbox.journal.remove -> count
DELETE j FROM {seqs} STRAIGHT_JOIN {journal} j FORCE INDEX (PRIMARY) ON j.id = s.seq
