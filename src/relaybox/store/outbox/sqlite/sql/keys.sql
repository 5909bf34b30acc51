-- name: outbox.keys.walk -> rows
-- The next :limit keys that have waiting rows, in the order of their hash from :after on. Each step is the smallest
-- hash above the last: one probe per key, however many rows it has. The head is the row that may be claimed first,
-- if any: of a held key only the one that holds it. The zeros are what other engines know: whether somebody has the
-- key, or delivers by shards.
WITH RECURSIVE walk(key_hash, n) AS (
  SELECT (SELECT min(key_hash) FROM {pending} WHERE key_hash > :after), 1
  UNION ALL
  SELECT (SELECT min(p.key_hash) FROM {pending} p WHERE p.key_hash > w.key_hash), w.n + 1 FROM walk w
  WHERE w.key_hash IS NOT NULL AND w.n < :limit)
SELECT w.key_hash, 0,
       CASE WHEN h.key_hash IS NULL
            THEN (SELECT p.seq FROM {pending} p
                  WHERE p.key_hash = w.key_hash AND {ready} ORDER BY p.seq LIMIT 1)
            ELSE (SELECT p.seq FROM {pending} p WHERE p.seq = h.seq AND NOT h.parked AND {ready}) END,
       0
FROM walk w LEFT JOIN {hold} h ON h.key_hash = w.key_hash
WHERE w.key_hash IS NOT NULL

-- name: outbox.keys.pick -> rows
-- The due rows of these keys, key by key; of a held one its head. No more of one key than can be used, or a long one
-- would be sorted as a whole.
WITH bound AS MATERIALIZED (
  SELECT k.value AS key_hash, coalesce(h.seq, 0) AS first,
         CASE WHEN h.parked THEN -1 ELSE
           coalesce(h.seq, (SELECT p.seq FROM {pending} p WHERE p.key_hash = k.value AND {ready}
                            ORDER BY p.seq LIMIT 1 OFFSET :share), 9223372036854775807) END AS last
  FROM json_each(:keys) k LEFT JOIN {hold} h ON h.key_hash = k.value)
SELECT p.seq, p.key_hash FROM bound b CROSS JOIN {pending} p ON p.key_hash = b.key_hash
WHERE p.seq BETWEEN b.first AND b.last AND {ready}
ORDER BY p.key_hash, p.seq LIMIT :limit
