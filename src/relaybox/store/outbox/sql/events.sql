-- Events for operators. Oldest first, by keyset (:after) so that long lists page.

-- name: outbox.events.ids -> rows
-- Not ORDER BY: our sessions would read all events in that order rather than sort.
SELECT seq FROM {event} WHERE event_id {in_ids}

-- name: outbox.events.newest -> rows
-- Where a change of many ends: what is written or dies later is not part of it.
SELECT coalesce(max(seq), 0), {clock} FROM {event}

-- name: outbox.events.open -> rows
SELECT e.seq, {listed_columns}, p.attempts, {open_error}, {open_due}, NULL,
       CASE WHEN {claimed} THEN 'claimed' WHEN p.attempts > 0 THEN 'retry' ELSE 'waiting' END
{from_open} ORDER BY p.seq LIMIT :limit

-- name: outbox.events.open_count -> rows
SELECT count(*) {from_open}

-- name: outbox.events.open_numbers -> rows
SELECT p.seq {from_open} ORDER BY p.seq LIMIT :limit

-- name: outbox.events.dead -> rows
SELECT e.seq, {listed_columns}, d.attempts, {dead_error}, NULL, {dead_at}, 'dead'
{from_dead} ORDER BY d.seq LIMIT :limit

-- name: outbox.events.dead_count -> rows
SELECT count(*) {from_dead}

-- name: outbox.events.dead_numbers -> rows
SELECT d.seq {from_dead} ORDER BY d.seq LIMIT :limit

-- name: outbox.events.done -> rows
SELECT e.seq, {listed_columns}, NULL, NULL, NULL, NULL, 'done'
{from_done} ORDER BY e.seq LIMIT :limit

-- name: outbox.events.done_count -> rows
SELECT count(*) {from_done}

-- name: outbox.events.done_numbers -> rows
SELECT e.seq {from_done} ORDER BY e.seq LIMIT :limit

-- name: outbox.events.lock -> rows
-- Nobody purges or replays these beside us.
SELECT e.seq, coalesce(e.aggregate_id, e.event_id) FROM {event} e WHERE e.seq {in_seqs} ORDER BY e.seq {for_update}

-- name: outbox.events.again -> count
-- Finished ones, as if they had just been written.
INSERT INTO {pending} (seq, due, key_hash, attempts, tenant, since)
SELECT s.seq, {clock}, s.key_hash, 0, coalesce((SELECT e.tenant_id FROM {event} e WHERE e.seq = s.seq), ''), {clock}
FROM {hashed}
WHERE NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.seq = s.seq)
  AND NOT EXISTS (SELECT 1 FROM {dead} d WHERE d.seq = s.seq) {and_not_claimed}
