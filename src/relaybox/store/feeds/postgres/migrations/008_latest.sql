-- The newest delta of each feed, to look at: how old, how large, what is in it.

-- With its event, as long as the log keeps that.
CREATE FUNCTION {feed_newest}()
RETURNS TABLE (feed text, topic text, n bigint, seq bigint, created_at timestamptz, inserted bigint, deleted bigint,
               claim_check boolean, snapshot boolean, payload json)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  f {feed};
  t {topic};
BEGIN
  FOR f IN SELECT * FROM {feed} k ORDER BY k.name LOOP
    SELECT * INTO t FROM {topic} k WHERE k.id = f.topic_id;
    RETURN QUERY EXECUTE format(
      'SELECT $1, $2, $3, $4, l.created_at, (l.headers ->> ''feed-inserted'')::bigint, (l.headers ->> ''feed-deleted'')::bigint, '
      '(l.headers ->> ''feed-claim-check'')::boolean, (l.headers ->> ''feed-snapshot'')::boolean, l.payload '
      'FROM (VALUES (1)) AS one LEFT JOIN (SELECT e.created_at, e.headers::json, convert_from(e.payload, ''UTF8'')::json AS payload '
      'FROM generate_series(0, $5 - 1) AS s(shard) JOIN %s.%I e ON e.shard = s.shard AND e.seq = $4) l ON true',
      {feed_home}(), t.relation) USING f.name, t.name, f.n, f.last_seq, t.shards;
  END LOOP;
END $feed$;

CREATE VIEW {feed_latest} AS SELECT * FROM {feed_newest}();
