-- The newest delta of each feed, to look at: how old, how large, what is in it.

-- The event of a delta by its number in a topic, as long as the log keeps it.
CREATE FUNCTION {feed_newest}(topic integer, number bigint)
RETURNS TABLE (created_at timestamptz, headers json, payload json)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  t {topic};
BEGIN
  SELECT * INTO t FROM {topic} k WHERE k.id = topic;
  RETURN QUERY EXECUTE format(
    'SELECT l.created_at, l.headers::json, convert_from(l.payload, ''UTF8'')::json FROM generate_series(0, $1 - 1) AS s(shard) '
    'JOIN %s.%I l ON l.shard = s.shard AND l.seq = $2', {feed_home}(), t.relation) USING t.shards, number;
END $feed$;

CREATE VIEW {feed_latest} AS
SELECT f.name AS feed, t.name AS topic, f.n, f.last_seq AS seq, e.created_at,
       (e.headers ->> 'feed-inserted')::bigint AS inserted, (e.headers ->> 'feed-deleted')::bigint AS deleted,
       (e.headers ->> 'feed-claim-check')::boolean AS claim_check, (e.headers ->> 'feed-snapshot')::boolean AS snapshot,
       e.payload
FROM {feed} f JOIN {topic} t ON t.id = f.topic_id
LEFT JOIN LATERAL {feed_newest}(f.topic_id, f.last_seq) e ON true;
