-- A queue tracked by rows is an outbox of its own ({queue_event} and those beside it). Here is what pull consumers that
-- claim from it need besides.

-- name: topic.queue.enlist -> count
-- A pull consumer as an owner of claims: under its member's id, for as long as that lives.
INSERT INTO {queue_instance} AS i (id, name, role, started_at, expires_at) OVERRIDING SYSTEM VALUE
SELECT :member, left(:name::text, 128), 'pull', n.at, n.at + {ttl}
FROM (SELECT {clock} AS at) n
ON CONFLICT (id) DO UPDATE SET expires_at = greatest(i.expires_at, excluded.expires_at)

-- name: topic.queue.state -> rows
-- Whether the group is given anything, and its member alive.
SELECT m.name FROM {member} m JOIN {group} g ON g.id = m.group_id AND g.state = 'active'
WHERE m.id = :member AND m.expires_at > {clock}
  AND to_regclass('{queue_claim}') IS NOT NULL

-- name: topic.queue.unknown -> rows
-- Claims that their owner does not know of: replies that were lost.
SELECT token FROM {queue_claim} WHERE owner = :member AND token <> ALL(:known::bigint[])
