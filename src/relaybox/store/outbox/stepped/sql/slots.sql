-- slot: ready
(p.due <= {clock} OR (p.since IS NOT NULL AND p.token IS NULL))

-- slot: open_rows
{pending} p

-- slot: open_due
CASE WHEN p.owner IS NULL THEN p.due END

-- slot: dead_at
d.dead_at

-- slot: claimed
p.owner IS NOT NULL

-- slot: and_unclaimed
-- A claimed row is a pending one.

-- slot: and_not_claimed
AND s.seq >= 1
