-- What a client asks of feeds. The work is done by the functions of the migrations.

-- slot: at_home
DO $home$
BEGIN
  EXECUTE pg_catalog.replace($text${function}$text$, '@home@', pg_catalog.quote_ident(pg_catalog.current_schema()));
END $home$

-- name: feed.create -> rows
SELECT {feed_create}(:name::text, :query::text, :key::text[], :topic::text, :options::jsonb)

-- name: feed.refresh -> rows
SELECT r.n, r.how, r.reasons, r.inserted, r.deleted, r.claim_check, r.seq
FROM {feed_refresh}(:name::text, :how::text) AS r

-- name: feed.snapshot -> rows
SELECT r.n, r.how, r.reasons, r.inserted, r.deleted, r.claim_check, r.seq FROM {feed_snapshot}(:name::text) AS r

-- name: feed.drift -> rows
SELECT d.rows, d.waiting, d.captured FROM {feed_drift}(:name::text) AS d

-- name: feed.pause -> rows
SELECT {feed_pause}(:name::text)

-- name: feed.resume -> rows
SELECT {feed_resume}(:name::text)

-- name: feed.drop -> rows
SELECT {feed_drop}(:name::text)::text

-- name: feed.find -> rows
SELECT f.id, f.name, t.name, f.own_topic, f.state, f.mode, f.relation, f.query, f.key, f.scope, f.columns, f.epoch::text,
       f.n, f.created_at, f.refreshed_at, f.last_how, f.last_inserted, f.last_deleted
FROM {feed} f JOIN {topic} t ON t.id = f.topic_id
WHERE :name::text IS NULL OR f.name = :name::text
ORDER BY f.name

-- name: feed.counts -> rows
SELECT {feed_waiting}(f.id), ARRAY(SELECT DISTINCT s.reason FROM {feed_stale} s WHERE s.feed_id = f.id ORDER BY 1),
       (SELECT count(*) FROM {feed_delta} d WHERE d.feed_id = f.id), c.chunks, c.bytes,
       coalesce(pg_total_relation_size(to_regclass(f.relation)), 0)
FROM {feed} f CROSS JOIN LATERAL (
  SELECT count(*) AS chunks, coalesce(sum(octet_length(k.payload)), 0)::bigint AS bytes
  FROM {feed_chunk} k WHERE k.feed_id = f.id) c
WHERE f.name = :name::text

-- name: feed.own -> rows
-- Whether the topic was made with the feed, and which one it is.
SELECT t.name, f.own_topic FROM {feed} f JOIN {topic} t ON t.id = f.topic_id WHERE f.name = :name::text

-- name: feed.chunk -> rows
-- The next chunk of a delta. `chunks`: how many there are; no row: the delta is not kept any more.
SELECT d.chunks, c.op, c.payload
FROM {feed} f JOIN {feed_delta} d ON d.feed_id = f.id
LEFT JOIN {feed_chunk} c ON c.feed_id = d.feed_id AND c.n = d.n AND c.chunk = :chunk::integer
WHERE f.name = :name::text AND f.epoch = :epoch::uuid AND d.n = :n::bigint

-- name: feed.kept -> rows
-- What is kept of a delta by claim check; no row: nothing any more.
SELECT d.chunks, d.inserted, d.deleted FROM {feed} f JOIN {feed_delta} d ON d.feed_id = f.id
WHERE f.name = :name::text AND f.epoch = :epoch::uuid AND d.n = :n::bigint

-- name: feed.of_topic -> rows
SELECT f.name FROM {feed} f JOIN {topic} t ON t.id = f.topic_id WHERE t.name = :topic::text ORDER BY f.name

-- name: feed.there -> rows
-- Whether there are feeds in this database, before anything is asked of them.
SELECT to_regclass('{feed}') IS NOT NULL

-- name: feed.kept_deltas -> rows
-- Deltas whose rows are in chunks: of one feed, or of those whose rows a group hands to others.
SELECT d.feed_id, d.n, d.seq, {feed_held}(d, t)
FROM {feed} f JOIN {topic} t ON t.id = f.topic_id JOIN {feed_delta} d ON d.feed_id = f.id
WHERE f.name = :name::text
   OR EXISTS (SELECT FROM {feed_hand_off} h WHERE h.feed_id = f.id AND h.group_id = :group::integer)
ORDER BY d.feed_id, d.n

-- name: feed.hand_off -> count
INSERT INTO {feed_hand_off} (feed_id, group_id) SELECT f.id, :group::integer FROM {feed} f WHERE f.name = :name::text
ON CONFLICT DO NOTHING

-- name: feed.take_back -> count
DELETE FROM {feed_hand_off} h USING {feed} f
WHERE f.id = h.feed_id AND f.name = :name::text AND h.group_id = :group::integer

-- name: feed.pass_over -> count
-- A group is not to have these: nobody will say that their rows were read. Some may be swept just now.
INSERT INTO {feed_consumed} (feed_id, n, group_id)
SELECT d.feed_id, d.n, :group::integer FROM {feed_delta} d
JOIN unnest(:feeds::integer[], :numbers::bigint[]) AS u(feed_id, n) ON d.feed_id = u.feed_id AND d.n = u.n
FOR KEY SHARE OF d
ON CONFLICT DO NOTHING

-- name: feed.look_forward -> count
-- A group is to have these, perhaps once more.
DELETE FROM {feed_consumed} c USING unnest(:feeds::integer[], :numbers::bigint[]) AS u(feed_id, n)
WHERE c.feed_id = u.feed_id AND c.n = u.n AND c.group_id = :group::integer

-- name: feed.rows_consumed -> rows
SELECT {feed_rows_consumed}(:name::text, :n::bigint, :group::text, :epoch::uuid)

-- name: feed.sweep -> rows
SELECT s.gone, s.lost FROM {feed_sweep}(:topic::integer, :limit::integer) AS s

-- name: feed.missing -> rows
-- Functions of ours that are not there.
SELECT u.name FROM unnest(:functions::text[]) AS u(name) WHERE to_regproc(u.name) IS NULL ORDER BY 1
