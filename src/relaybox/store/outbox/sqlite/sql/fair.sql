-- Claims that go round the tenants. Their index is made on request: it costs a write more per event.

-- name: outbox.fair.index -> count
CREATE INDEX IF NOT EXISTS {pending_name}_tenant ON {pending} (tenant, due, seq)

-- name: outbox.fair.walk -> rows
-- The next :limit tenants of whom something waits or is claimed, in their order from :after on and then from the first,
-- and whether it is due. One index probe for each step, however much waits.
WITH RECURSIVE ahead(tenant, n) AS (
  SELECT (SELECT min(tenant) FROM {pending} WHERE tenant > :after), 1
  UNION ALL
  SELECT (SELECT min(p.tenant) FROM {pending} p WHERE p.tenant > w.tenant), w.n + 1 FROM ahead w
  WHERE w.tenant IS NOT NULL AND w.n < :limit),
again(tenant, n) AS (
  SELECT (SELECT min(tenant) FROM {pending}), 1
  UNION ALL
  SELECT (SELECT min(p.tenant) FROM {pending} p WHERE p.tenant > w.tenant), w.n + 1 FROM again w
  WHERE w.tenant < :after AND w.n < :limit)
SELECT w.tenant, EXISTS (SELECT 1 FROM {pending} p WHERE p.tenant = w.tenant AND p.due <= {clock})
FROM (SELECT tenant, 0 AS lap, n FROM ahead WHERE tenant IS NOT NULL
      UNION ALL
      SELECT tenant, 1, n FROM again WHERE tenant <= :after
      ORDER BY lap, n LIMIT :limit) w
ORDER BY w.lap, w.n

-- name: outbox.fair.pick -> rows
-- The longest-due rows of one tenant.
SELECT seq FROM {pending} WHERE tenant = :tenant AND due <= {clock} ORDER BY due, seq LIMIT :share

-- name: outbox.fair.waiting -> rows
-- How much waits for a tenant or is claimed, no further than :most.
SELECT count(*) FROM (SELECT 1 FROM {pending} WHERE tenant = :tenant LIMIT :most) p
