-- name: outbox.keys.walk -> rows
-- The next :limit keys that have waiting rows, in the order of their hash from :after on. A key is leased while a row
-- with the token of its lease is claimed and not expired. The head is the row that may be claimed first, if any: of a
-- held key only the one that holds it, found by its number and not among all that wait behind it. The last column says
-- that somebody delivers by shards.
SELECT w.key_hash,
       EXISTS (SELECT 1 FROM {lease} l JOIN {pending} c ON c.key_hash = l.key_hash AND c.token = l.token
               WHERE l.key_hash = w.key_hash AND c.due > {clock}),
       CASE WHEN h.key_hash IS NULL
            THEN (SELECT p.seq FROM {pending} p FORCE INDEX ({pending_name}_key)
                  WHERE p.key_hash = w.key_hash AND {ready} ORDER BY p.seq LIMIT 1)
            ELSE (SELECT p.seq FROM {pending} p WHERE p.seq = h.seq AND NOT h.parked AND {ready}) END,
       EXISTS (SELECT 1 FROM {shard} WHERE owner IS NOT NULL AND {lasting})
FROM (SELECT key_hash FROM {pending} FORCE INDEX ({pending_name}_key)
      WHERE key_hash > :after GROUP BY key_hash ORDER BY key_hash LIMIT :limit) w
LEFT JOIN {hold} h ON h.key_hash = w.key_hash
ORDER BY w.key_hash

-- name: outbox.keys.rows -> rows
-- Up to :limit keys whose head nobody has locked. One whose head is locked or gone is passed over as a whole: its head
-- was looked up before, so its next row is not taken in its place. The lock only keeps claimers apart, the lease holds.
SELECT p.key_hash FROM {seqs} STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = s.seq
WHERE {ready} LIMIT :limit {skip_locked}

-- name: outbox.keys.pick -> rows
-- The due rows of these keys, key by key; of a held one its head. No more of one key than can be used, or a long one
-- would be sorted as a whole.
SELECT f.seq, f.key_hash FROM (
  SELECT p.seq, p.key_hash
  FROM (SELECT k.key_hash, coalesce((SELECT p.seq FROM {pending} p FORCE INDEX ({pending_name}_key)
                                     WHERE p.key_hash = k.key_hash AND {ready}
                                     ORDER BY p.seq LIMIT 1 OFFSET :share), 9223372036854775807) AS last
        FROM {keys} LEFT JOIN {hold} h ON h.key_hash = k.key_hash WHERE h.key_hash IS NULL) b
  STRAIGHT_JOIN {pending} p FORCE INDEX ({pending_name}_key) ON p.key_hash = b.key_hash AND p.seq <= b.last
  WHERE {ready}
  UNION ALL
  SELECT p.seq, p.key_hash FROM {keys} STRAIGHT_JOIN {hold} h ON h.key_hash = k.key_hash
  STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = h.seq
  WHERE NOT h.parked AND {ready}) f
ORDER BY f.key_hash, f.seq LIMIT :limit

-- name: outbox.lease.expired -> rows
-- What the former holders of these keys had claimed and let expire. Read without locks: a writer may be about to commit
-- more rows of the same key, and a claim must not wait for it.
SELECT p.seq, p.token FROM {keys} STRAIGHT_JOIN {pending} p FORCE INDEX ({pending_name}_key) ON p.key_hash = k.key_hash
WHERE p.token IS NOT NULL AND p.due <= {clock}

-- name: outbox.lease.expire -> count
-- It is free, and its tokens are gone. A renewal that comes first wins (this waits for its locks): then rows with its
-- token are left, and the key stays where it is.
UPDATE {held} STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.seq = s.seq AND p.token = s.token
SET p.token = NULL, p.owner = NULL, p.claimed_at = NULL
WHERE p.due <= {clock}

-- name: outbox.lease.stale -> rows
-- Leases of these keys with no claimed row. A lease and its rows are committed together, so one that is seen without
-- stays without; it is freed under the token that was seen, for it may be another's by then.
SELECT l.key_hash, l.token FROM {keys} STRAIGHT_JOIN {lease} l ON l.key_hash = k.key_hash
WHERE NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.key_hash = l.key_hash AND p.token = l.token)

-- name: outbox.lease.sweep -> rows
-- The same of all keys, to keep the number of leases small.
SELECT l.key_hash, l.token FROM {lease} l
WHERE NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.key_hash = l.key_hash AND p.token = l.token) LIMIT 1000

-- name: outbox.lease.free -> count
DELETE l FROM JSON_TABLE(:free, '$[*]' COLUMNS (key_hash bigint PATH '$[0]', token bigint PATH '$[1]')) s
STRAIGHT_JOIN {lease} l ON l.key_hash = s.key_hash AND l.token = s.token

-- name: outbox.lease.take -> count
INSERT IGNORE INTO {lease} (key_hash, token) SELECT k.key_hash, :token FROM {keys}

-- name: outbox.lease.mine -> rows
SELECT l.key_hash FROM {keys} STRAIGHT_JOIN {lease} l ON l.key_hash = k.key_hash WHERE l.token = :token
