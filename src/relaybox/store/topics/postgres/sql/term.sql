-- Jobs that only one process should do at a time. A term is a number that grows with every new holder; whatever its holder
-- does carries it, and does nothing once it is another's.

-- name: topic.term.acquire -> rows
-- Free, run out, ours already, or held for longer than anybody holds it: the clock was put back. No row: another holds it.
INSERT INTO {term} AS t (job, owner, term, until)
VALUES (:job, :owner, 1, {clock} + :ttl::interval)
ON CONFLICT (job) DO UPDATE
SET owner = excluded.owner, until = excluded.until, term = t.term + CASE WHEN t.owner = excluded.owner THEN 0 ELSE 1 END
WHERE t.owner = excluded.owner OR t.until <= {clock} OR t.until > {clock} + :ttl::interval + :ttl::interval
RETURNING term

-- name: topic.term.hold -> rows
-- The lock makes a successor wait for our commit, and us see that it was faster.
SELECT 1 FROM {term}
WHERE job = :job AND owner = :owner AND term = :term AND until > {clock}
FOR SHARE

-- name: topic.term.release -> count
UPDATE {term} SET until = {clock} WHERE job = :job AND owner = :owner AND term = :term

-- name: topic.term.clock -> rows
SELECT clock_timestamp()

-- name: topic.term.recent -> rows
SELECT 1 FROM {term} WHERE job = :job AND until > {clock} - interval '1 hour'
