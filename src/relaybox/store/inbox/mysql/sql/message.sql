-- name: inbox.message.waiting -> rows
-- What is not processed yet, for people to look at: nothing is claimed or locked. Oldest first, by keyset.
SELECT m.seq, m.event_id, m.event_type, m.aggregate_type, m.aggregate_id, m.tenant_id, m.content_type,
       m.payload, m.headers, m.occurred_at, NULL, m.received_at, m.source,
       p.attempts, p.last_error, p.position, CASE WHEN p.owner IS NULL AND NOT p.held THEN p.due END, NULL,
       CASE WHEN p.held THEN 'held' WHEN p.owner IS NOT NULL THEN 'claimed' WHEN p.attempts > 0 THEN 'retry'
            ELSE 'pending' END
FROM {pending} p JOIN {message} m ON m.seq = p.seq
WHERE p.seq > :after
  AND (:event_type IS NULL OR m.event_type = :event_type)
  AND (:source IS NULL OR m.source = :source)
  AND (:aggregate_id IS NULL OR m.aggregate_id = :aggregate_id)
  AND (:tenant_id IS NULL OR m.tenant_id = :tenant_id)
  AND (:since IS NULL OR m.received_at >= :since)
  AND (:before IS NULL OR m.received_at < :before)
ORDER BY p.seq LIMIT :limit

-- name: inbox.message.dead -> rows
SELECT m.seq, m.event_id, m.event_type, m.aggregate_type, m.aggregate_id, m.tenant_id, m.content_type,
       m.payload, m.headers, m.occurred_at, NULL, m.received_at, m.source,
       d.attempts, d.last_error, d.position, NULL, d.dead_at, 'dead'
FROM {dead} d JOIN {message} m ON m.seq = d.seq
WHERE d.seq > :after
  AND (:event_type IS NULL OR m.event_type = :event_type)
  AND (:source IS NULL OR m.source = :source)
  AND (:aggregate_id IS NULL OR m.aggregate_id = :aggregate_id)
  AND (:tenant_id IS NULL OR m.tenant_id = :tenant_id)
  AND (:since IS NULL OR m.received_at >= :since)
  AND (:before IS NULL OR m.received_at < :before)
ORDER BY d.seq LIMIT :limit

-- name: inbox.message.processed -> rows
SELECT m.seq, m.event_id, m.event_type, m.aggregate_type, m.aggregate_id, m.tenant_id, m.content_type,
       m.payload, m.headers, m.occurred_at, NULL, m.received_at, m.source,
       f.attempts, NULL, NULL, NULL, f.processed_at, 'processed'
FROM {done} f JOIN {message} m ON m.seq = f.seq
WHERE f.seq > :after
  AND (:event_type IS NULL OR m.event_type = :event_type)
  AND (:source IS NULL OR m.source = :source)
  AND (:aggregate_id IS NULL OR m.aggregate_id = :aggregate_id)
  AND (:tenant_id IS NULL OR m.tenant_id = :tenant_id)
  AND (:since IS NULL OR m.received_at >= :since)
  AND (:before IS NULL OR m.received_at < :before)
ORDER BY f.seq LIMIT :limit

-- name: inbox.message.find -> rows
-- One by its id. The newest, should there be an older one whose id was forgotten.
SELECT m.seq, m.event_id, m.event_type, m.aggregate_type, m.aggregate_id, m.tenant_id, m.content_type,
       m.payload, m.headers, m.occurred_at, NULL, m.received_at, m.source,
       coalesce(p.attempts, d.attempts, f.attempts), coalesce(p.last_error, d.last_error),
       coalesce(p.position, d.position), CASE WHEN p.owner IS NULL AND NOT p.held THEN p.due END,
       coalesce(d.dead_at, f.processed_at),
       CASE WHEN d.seq IS NOT NULL THEN 'dead' WHEN p.seq IS NULL THEN 'processed' WHEN p.held THEN 'held'
            WHEN p.owner IS NOT NULL THEN 'claimed' WHEN p.attempts > 0 THEN 'retry' ELSE 'pending' END
FROM {message} m LEFT JOIN {pending} p ON p.seq = m.seq LEFT JOIN {dead} d ON d.seq = m.seq
LEFT JOIN {done} f ON f.seq = m.seq
WHERE m.event_id = :event_id AND CAST(m.event_id AS binary) = CAST(:event_id AS binary)
ORDER BY m.seq DESC LIMIT 1
