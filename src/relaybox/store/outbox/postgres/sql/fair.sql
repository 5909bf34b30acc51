-- Claims that go round the tenants. Their indexes are made on request: each costs a write more per event.

-- name: outbox.fair.index -> count
CREATE INDEX IF NOT EXISTS "{pending_name}_tenant" ON {pending} (tenant, due, seq)

-- name: outbox.fair.batches -> count
CREATE INDEX IF NOT EXISTS "{claim_name}_tenant" ON {claim} (tenant, until) WHERE owner IS NULL

-- name: outbox.fair.unmix -> count
-- The oldest of the batches that have events of several tenants become single rows: their tenants are found then. Few at
-- a time, for a claim waits for it.
WITH gone AS (
  DELETE FROM {claim} WHERE token IN (
    SELECT token FROM {claim} WHERE owner IS NULL AND tenant IS NULL ORDER BY until LIMIT :limit {skip_locked})
  RETURNING items, coalesce(since, until) AS since)
INSERT INTO {pending} (seq, due, key_hash, attempts, tenant, since)
SELECT e.seq, gone.since, {hash}(coalesce(e.aggregate_id, e.event_id)), item % 65536::bigint, coalesce(e.tenant_id, ''),
       gone.since
FROM gone, unnest(gone.items) AS item JOIN {event} e ON e.seq = item / 65536
WHERE item > 65535
{once}

-- name: outbox.fair.claim -> rows
-- As outbox.claim, from one tenant after the other. `walked` are the next :steps tenants of whom something waits, in their
-- order from :after on and then from the first, with one index probe for each step, however much waits: a recursion is read
-- only as far as LIMIT asks. `turn` are those of whom something is due. Each gives a share: of a batch that waits for longer
-- than the tenant's single rows, or of those. What is left over goes to the rows that are longest due, then to the batches. The last row also says behind whom the next claim begins, and whether batches of several tenants wait.
WITH RECURSIVE clock AS MATERIALIZED (
  SELECT {clock} AS now, set_config('synchronous_commit', 'off', true)),
ahead AS (
  SELECT least((SELECT min(tenant) FROM {pending} WHERE tenant > :after::text),
               (SELECT min(tenant) FROM {claim} WHERE owner IS NULL AND tenant > :after::text)) AS tenant
  UNION ALL
  SELECT least((SELECT min(p.tenant) FROM {pending} p WHERE p.tenant > w.tenant),
               (SELECT min(c.tenant) FROM {claim} c WHERE c.owner IS NULL AND c.tenant > w.tenant))
  FROM ahead w WHERE w.tenant IS NOT NULL),
again AS (
  SELECT least((SELECT min(tenant) FROM {pending}), (SELECT min(tenant) FROM {claim} WHERE owner IS NULL)) AS tenant
  UNION ALL
  SELECT least((SELECT min(p.tenant) FROM {pending} p WHERE p.tenant > w.tenant),
               (SELECT min(c.tenant) FROM {claim} c WHERE c.owner IS NULL AND c.tenant > w.tenant))
  FROM again w WHERE w.tenant < :after::text),
walked AS MATERIALIZED (
  SELECT w.tenant, row_number() OVER () AS ord,
         (SELECT min(p.due) FROM {pending} p WHERE p.tenant = w.tenant) AS due,
         (SELECT min(c.until) FROM {claim} c WHERE c.owner IS NULL AND c.tenant = w.tenant) AS until
  FROM (SELECT tenant FROM ahead WHERE tenant IS NOT NULL
        UNION ALL
        SELECT tenant FROM again WHERE tenant <= :after::text
        LIMIT :steps) w),
turn AS MATERIALIZED (
  SELECT tenant, ord, until <= coalesce(due, until) AS in_batch FROM walked
  WHERE until IS NOT NULL OR due <= (SELECT now FROM clock)
  ORDER BY ord LIMIT :limit),
each AS MATERIALIZED (
  SELECT count(*) AS tenants, :limit::bigint / greatest(count(*), 1) AS share FROM turn),
batch AS MATERIALIZED (
  SELECT t.ord, b.token, b.items, b.until
  FROM turn t CROSS JOIN LATERAL (
    SELECT c.token, c.items, c.until FROM {claim} c
    WHERE t.in_batch AND c.owner IS NULL AND c.tenant = t.tenant
    ORDER BY c.until LIMIT 1
    {skip_locked}) b),
fair AS MATERIALIZED (
  SELECT p.ctid, p.seq
  FROM turn t CROSS JOIN LATERAL (
    SELECT ctid, seq FROM {pending}
    WHERE tenant = t.tenant AND due <= (SELECT now FROM clock)
      AND NOT EXISTS (SELECT 1 FROM batch b WHERE b.ord = t.ord)
    ORDER BY due, seq LIMIT (SELECT share FROM each)
    {skip_locked}) p),
shared AS MATERIALIZED (
  SELECT share, :limit::bigint - (SELECT count(*) FROM fair)
         - coalesce((SELECT sum(least(cardinality(items), share)) FROM batch), 0)::bigint AS rest
  FROM each),
more AS MATERIALIZED (
  SELECT ctid FROM {pending}
  WHERE due <= (SELECT now FROM clock) AND (SELECT rest FROM shared) > 0 AND seq NOT IN (SELECT seq FROM fair)
  ORDER BY due, seq LIMIT (SELECT greatest(rest, 0) FROM shared)
  {skip_locked}),
part AS MATERIALIZED (
  SELECT b.token, b.items, b.until,
         (b.size - b.spare + greatest(least(b.spare, b.rest - (SELECT count(*) FROM more) - b.before), 0))::integer AS room
  FROM (SELECT token, items, until, rest, cardinality(items) AS size, greatest(cardinality(items) - share, 0) AS spare,
               coalesce(sum(greatest(cardinality(items) - share, 0))
                        OVER (ORDER BY ord ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::bigint AS before
        FROM batch, shared) b),
rest AS (
  UPDATE {claim} c SET items = b.items[b.room + 1:] FROM part b
  WHERE c.token = b.token AND cardinality(b.items) > b.room),
emptied AS (
  DELETE FROM {claim} c USING part b WHERE c.token = b.token AND cardinality(b.items) <= b.room),
gone AS (
  DELETE FROM {pending} WHERE ctid = ANY(ARRAY(SELECT ctid FROM fair UNION ALL SELECT ctid FROM more))
  RETURNING seq, {item} AS item, coalesce(since, due) AS since),
{odd},
taken AS MATERIALIZED (
  SELECT item, since FROM gone WHERE item IS NOT NULL
  UNION ALL
  SELECT item + (item % 65536::bigint < 65535)::integer, b.until FROM part b, unnest(b.items[1:b.room]) AS item
  WHERE item > 65535),
{claim_taken}
SELECT cardinality(items),
       (SELECT tenant FROM walked WHERE tenants < :limit OR ord <= (SELECT max(ord) FROM turn) ORDER BY ord DESC LIMIT 1),
       CASE WHEN EXISTS (SELECT 1 FROM {claim} WHERE owner IS NULL AND tenant IS NULL) THEN 'mixed' END,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, CASE WHEN tried THEN items END
FROM whole, each

-- name: outbox.fair.waiting -> rows
-- How much waits for a tenant, no further than :most; batches in steps of their size.
SELECT least((SELECT count(*) FROM (SELECT 1 FROM {pending} WHERE tenant = :tenant::text LIMIT :most) p)
             + coalesce((SELECT sum(cardinality(items)) FROM (
                 SELECT items FROM {claim} WHERE owner IS NULL AND tenant = :tenant::text LIMIT :most / 200 + 1) c), 0),
             :most)
