-- Claims that go round the tenants. Their index is made on request: it costs a write more per event.

-- name: outbox.fair.index -> count
ALTER TABLE {pending} ADD KEY {pending_name}_tenant (tenant, due, seq)

-- name: outbox.fair.walk -> rows
-- The next :limit tenants of whom something waits or is claimed, in their order from :after on and then from the first,
-- and whether it is due. GROUP BY steps through the index from one tenant to the next.
SELECT w.tenant, EXISTS (SELECT 1 FROM {pending} p FORCE INDEX ({pending_name}_tenant)
                         WHERE p.tenant = w.tenant AND p.due <= {clock})
FROM ((SELECT tenant, 0 AS lap FROM {pending} FORCE INDEX ({pending_name}_tenant)
       WHERE tenant > :after GROUP BY tenant ORDER BY tenant LIMIT :limit)
      UNION ALL
      (SELECT tenant, 1 FROM {pending} FORCE INDEX ({pending_name}_tenant)
       WHERE tenant <= :after GROUP BY tenant ORDER BY tenant LIMIT :limit)) w
ORDER BY w.lap, w.tenant LIMIT :limit

-- name: outbox.fair.pick -> rows
-- The longest-due rows of one tenant, locked; others pass over them.
SELECT seq FROM {pending} FORCE INDEX ({pending_name}_tenant)
WHERE tenant = :tenant AND due <= {clock} ORDER BY due, seq LIMIT :share {skip_locked}

-- name: outbox.fair.waiting -> rows
-- How much waits for a tenant or is claimed, no further than :most.
SELECT count(*) FROM (SELECT 1 FROM {pending} FORCE INDEX ({pending_name}_tenant) WHERE tenant = :tenant LIMIT :most) p
