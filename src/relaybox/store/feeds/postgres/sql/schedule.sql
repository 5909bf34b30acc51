-- Refreshing by schedule, and what is to be told of feeds.

-- slot: feed_is_due
-- Or the clock was put back since it was looked at.
(s.next_at <= {clock} OR s.next_at IS NOT NULL AND greatest(s.seen_at, s.failed_at, s.since) > {clock})

-- name: feed.due -> rows
SELECT f.id, f.name, s.timeout, s.failures, coalesce(s.took > :slow::interval, false)
FROM {feed_schedule} s JOIN {feed} f ON f.id = s.feed_id
WHERE {feed_is_due} AND f.state = 'active' ORDER BY s.next_at

-- name: feed.take -> rows
-- No row: somebody else refreshes, changes or drops it, or has just refreshed it. Both rows are locked, so both are looked
-- at as they are now.
SELECT s.every, s.timeout
FROM {feed} f JOIN {feed_schedule} s ON s.feed_id = f.id
WHERE f.id = :feed::integer AND f.state = 'active' AND {feed_is_due}
FOR UPDATE SKIP LOCKED

-- name: feed.patience -> rows
-- To the end of the transaction.
SELECT set_config('statement_timeout', greatest(1, ceil(extract(epoch FROM :timeout::interval) * 1000::numeric))::integer::text, true)

-- name: feed.attempt -> rows
SELECT (a.done).n, (a.done).how, (a.done).reasons, (a.done).inserted, (a.done).deleted, (a.done).claim_check,
       (a.done).seq, a.failures, a.error
FROM {feed_attempt}(:name::text, :now::timestamptz) AS a

-- name: feed.next -> count
UPDATE {feed_schedule} SET next_at = {clock} + :pause::interval WHERE feed_id = :feed::integer AND every IS NOT NULL

-- name: feed.failed -> rows
-- A failure that nobody in the database could write down: the connection was lost, the commit failed, or the caller rolled
-- back. Not waited for: who holds the row has just tried it again.
UPDATE {feed_schedule} s
SET failures = s.failures + 1, failed_at = {clock}, error = :error::text,
    next_at = CASE WHEN s.every IS NOT NULL THEN coalesce({clock} + :pause::interval, s.next_at) END
WHERE s.feed_id IN (SELECT x.feed_id FROM {feed_schedule} x JOIN {feed} f ON f.id = x.feed_id WHERE f.name = :name::text
                    FOR UPDATE OF x SKIP LOCKED)
RETURNING s.failures

-- name: feed.verifiable -> rows
-- The feed whose turn it is to be verified, which it is thereby.
UPDATE {feed_schedule} s SET verified_at = {clock}
FROM {feed} f
WHERE f.id = s.feed_id AND s.feed_id IN (
  SELECT x.feed_id FROM {feed_schedule} x JOIN {feed} g ON g.id = x.feed_id
  WHERE x.verified_at <= {clock} - :interval::interval AND g.state = 'active' AND g.mode <> 'full' AND g.n > 0
  ORDER BY x.verified_at LIMIT 1 FOR UPDATE OF x SKIP LOCKED)
RETURNING f.id, f.name, s.timeout

-- name: feed.wrong -> rows
SELECT statement_timestamp(), {feed_wrong}(:name::text)

-- name: feed.verified -> count
-- Unless all was evaluated meanwhile, which mends it.
UPDATE {feed_schedule} s SET wrong = CASE WHEN f.last_how = 'full' AND f.refreshed_at >= :began::timestamptz THEN 0
                                          ELSE :wrong::bigint END
FROM {feed} f WHERE f.id = s.feed_id AND s.feed_id = :feed::integer

-- name: feed.fallen -> rows
-- Feeds that had to be evaluated as a whole, and why; said once.
UPDATE {feed_schedule} s SET fell_back = NULL
FROM (SELECT x.feed_id, x.fell_back FROM {feed_schedule} x WHERE x.fell_back IS NOT NULL FOR UPDATE SKIP LOCKED) o
JOIN {feed} f ON f.id = o.feed_id JOIN {topic} t ON t.id = f.topic_id
WHERE s.feed_id = o.feed_id
RETURNING f.name, t.name, o.fell_back

-- name: feed.look -> rows
-- What waits is not counted in a role that may not see it.
SELECT f.name, t.name, f.state, s.every, s.timeout, s.next_at, s.seen_at, s.took, s.failures, s.failed_at, s.error, s.wrong,
       s.verified_at, {clock} - greatest(s.seen_at, f.refreshed_at),
       s.every IS NOT NULL AND f.state = 'active'
         AND {clock} - greatest(s.seen_at, f.refreshed_at, s.since) > s.every + :late::interval,
       f.state = 'active' AND f.fingerprint <> {feed_print}(f.id),
       CASE WHEN (SELECT bool_and(has_table_privilege(to_regclass(r.touched), 'SELECT'))
                  FROM {feed_source} r WHERE r.feed_id = f.id) IS NOT FALSE THEN {feed_waiting}(f.id) END,
       (SELECT count(*) FROM {feed_delta} d WHERE d.feed_id = f.id),
       {feed_bytes}(f.id),
       (SELECT coalesce(sum(pg_total_relation_size(p.relid)), 0)::bigint
        FROM pg_partition_tree(to_regclass(format('%s.%I'::text, {feed_home}(), t.relation))) p)
FROM {feed} f JOIN {feed_schedule} s ON s.feed_id = f.id JOIN {topic} t ON t.id = f.topic_id
WHERE :name::text IS NULL OR f.name = :name::text
ORDER BY f.name
