-- A queue tracked by rows is an outbox of its own ({queue_event} and those beside it). Here is what its one group needs
-- besides: pull consumers that claim from it, and what operators look at.

-- name: topic.queue.enlist -> count
-- A pull consumer as an owner of claims: under its member's id, for as long as that lives.
INSERT INTO {queue_instance} AS i (id, name, role, started_at, expires_at) OVERRIDING SYSTEM VALUE
SELECT :member, left(:name::text, 128), 'pull', n.at, n.at + make_interval(secs => :ttl::float8)
FROM (SELECT coalesce(:now, clock_timestamp()) AS at) n
ON CONFLICT (id) DO UPDATE SET expires_at = greatest(i.expires_at, excluded.expires_at)

-- name: topic.queue.state -> rows
-- Whether the group is given anything, and its member alive.
SELECT m.name FROM {member} m JOIN {group} g ON g.id = m.group_id AND g.state = 'active'
WHERE m.id = :member AND m.expires_at > coalesce(:now, clock_timestamp())
  AND to_regclass('{queue_claim}') IS NOT NULL

-- name: topic.queue.unknown -> rows
-- Claims that their owner does not know of: replies that were lost.
SELECT token FROM {queue_claim} WHERE owner = :member AND token <> ALL(:known::bigint[])

-- name: topic.queue.parked -> rows
-- What was given up and what is tried again, by keyset; claimed ones are not shown.
SELECT e.seq, e.event_id, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant_id, e.content_type, e.payload,
       e.headers, e.occurred_at, e.deliver_at, e.created_at, p.state, p.attempts, p.due, p.last_error, p.dead_at
FROM (
  (SELECT seq, 'dead' AS state, attempts, dead_at AS due, last_error, dead_at FROM {queue_dead}
   WHERE seq > :after AND (:state::text IS NULL OR :state::text = 'dead')
     AND (:seqs::bigint[] IS NULL OR seq = ANY(:seqs::bigint[]))
   ORDER BY seq LIMIT :limit)
  UNION ALL
  (SELECT seq, 'retry', attempts, due, last_error, NULL FROM {queue_pending}
   WHERE attempts > 0 AND seq > :after AND (:state::text IS NULL OR :state::text = 'retry')
     AND (:seqs::bigint[] IS NULL OR seq = ANY(:seqs::bigint[]))
   ORDER BY seq LIMIT :limit)) p
JOIN {queue_event} e ON e.seq = p.seq
ORDER BY p.seq LIMIT :limit

-- name: topic.queue.skip -> rows
-- Given up for good: the event stays as one that is finished, and its key goes on.
WITH dead AS (DELETE FROM {queue_dead} WHERE seq = ANY(:seqs::bigint[]) RETURNING seq),
retried AS (DELETE FROM {queue_pending} WHERE seq = ANY(:seqs::bigint[]) AND attempts > 0 RETURNING seq),
gone AS (SELECT seq FROM dead UNION ALL SELECT seq FROM retried),
unheld AS (DELETE FROM {queue_hold} h USING gone WHERE h.seq = gone.seq)
SELECT seq FROM gone
