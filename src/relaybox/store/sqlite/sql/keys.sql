-- Ordered delivery while keys are held: from key to key, so that what waits behind a held head costs one probe.

-- name: outbox.keys.walk -> rows
-- The next :limit keys that have waiting rows, in the order of their hash from :after on; a last row without a key says
-- that there are no more. Each step is the smallest hash above the last: one probe per key, however many rows it has.
-- The head is the first row of the key that may be claimed, if any: none behind a held head, nor a parked one. The zeros
-- are what other engines know: whether somebody has the key, or delivers by shards.
WITH RECURSIVE walk(key_hash, n) AS (
  SELECT (SELECT min(key_hash) FROM {pending} WHERE key_hash > :after), 1
  UNION ALL
  SELECT (SELECT min(p.key_hash) FROM {pending} p WHERE p.key_hash > w.key_hash), w.n + 1 FROM walk w
  WHERE w.key_hash IS NOT NULL AND w.n < :limit)
SELECT w.key_hash, 0,
       (SELECT p.seq FROM {pending} p
        WHERE p.key_hash = w.key_hash AND p.due <= {clock}
          AND p.seq <= coalesce((SELECT h.seq - h.parked FROM {hold} h WHERE h.key_hash = w.key_hash),
                                9223372036854775807)
        ORDER BY p.seq LIMIT 1), 0
FROM walk w

-- name: outbox.keys.pick -> rows
-- The due rows of these keys, key by key. No more of one key than can be used, or a long one would be sorted as a whole.
SELECT p.seq, p.key_hash FROM json_each(:keys) k CROSS JOIN {pending} p ON p.key_hash = k.value
WHERE p.due <= {clock}
  AND p.seq <= coalesce((SELECT h.seq - h.parked FROM {hold} h WHERE h.key_hash = k.value), 9223372036854775807)
  AND p.seq <= coalesce((SELECT q.seq FROM {pending} q WHERE q.key_hash = k.value AND q.due <= {clock}
                         ORDER BY q.seq LIMIT 1 OFFSET :limit), 9223372036854775807)
ORDER BY p.key_hash, p.seq LIMIT :limit
