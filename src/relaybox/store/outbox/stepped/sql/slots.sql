-- slot: ready
(p.due <= {clock} OR (p.since IS NOT NULL AND p.token IS NULL))
