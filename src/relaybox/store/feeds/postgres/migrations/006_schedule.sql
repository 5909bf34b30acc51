-- When feeds are refreshed by themselves, and how it went. It is a row of its own: who refreshes a feed holds the feed's row
-- until the commit, and looking at this one must not wait for that.

CREATE TABLE {feed_schedule} (
  feed_id     integer     PRIMARY KEY REFERENCES {feed} (id) ON DELETE CASCADE,
  every       interval    CHECK (every > '0'),               -- NULL: when somebody asks, and only then
  timeout     interval    NOT NULL CHECK (timeout > '0'),    -- of one refresh by schedule
  since       timestamptz NOT NULL DEFAULT clock_timestamp(), -- that it is refreshed so often
  next_at     timestamptz,
  seen_at     timestamptz,                                   -- the last attempt that did it, or found nothing to do
  took        interval,                                      -- the last one that had something to do
  failures    integer     NOT NULL DEFAULT 0,                -- in a row
  failed_at   timestamptz,
  error       text,                                          -- of the last failure, until one succeeds
  fell_back   text,                                          -- why all had to be evaluated, until that was told
  verified_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  wrong       bigint                                         -- rows that were not as the query says, then
) WITH (fillfactor = 50);

-- The schedule as it is defined. What has another interval, or another query, is due at once. False: it is so already.
CREATE FUNCTION {feed_timed}(feed integer, options jsonb, anew boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  wanted interval := make_interval(secs => (options ->> 'every')::float8);
BEGIN
  INSERT INTO {feed_schedule} AS s (feed_id, every, timeout, next_at)
  VALUES (feed, wanted, make_interval(secs => coalesce((options ->> 'timeout')::float8, 600)),
          CASE WHEN wanted IS NOT NULL THEN clock_timestamp() END)
  ON CONFLICT (feed_id) DO UPDATE
  SET every = excluded.every, timeout = excluded.timeout, failures = 0, error = NULL,
      next_at = CASE WHEN anew OR s.every IS DISTINCT FROM excluded.every THEN excluded.next_at ELSE s.next_at END,
      since = CASE WHEN anew OR s.every IS DISTINCT FROM excluded.every THEN excluded.since ELSE s.since END
  WHERE anew OR (s.every, s.timeout) IS DISTINCT FROM (excluded.every, excluded.timeout);
  RETURN FOUND;
END $feed$;

-- A refresh succeeded: failures are over, and if it had to evaluate all somebody is to be told. In most cases nothing is
-- written.
CREATE FUNCTION {feed_well}(feed integer, whole boolean, because text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
BEGIN
  UPDATE {feed_schedule} s
  SET failures = 0, error = NULL, fell_back = coalesce(because, s.fell_back),
      next_at = CASE WHEN s.failures > 0 THEN least(s.next_at, clock_timestamp() + s.every) ELSE s.next_at END,
      wrong = CASE WHEN whole THEN 0 ELSE s.wrong END
  WHERE s.feed_id = feed AND (s.failures > 0 OR because IS NOT NULL OR (whole AND s.wrong > 0));
END $feed$;

-- What is kept of an error: its text where that names objects alone. Errors about values, and those that somebody's functions
-- raise, may quote rows.
CREATE FUNCTION {feed_told}(state text, message text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $feed$
  SELECT CASE WHEN state LIKE 'RBF%' OR left(state, 2) = ANY (ARRAY['0A', '25', '40', '42', '53', '54', '55', '57', '58'])
              THEN format('%s (%s)', left(message, 500), state)
              ELSE format('error %s; its text may quote rows, and is in the log of the server', state) END
$feed$;

-- A refresh by schedule: one that fails is rolled back and written down, by who holds the feed all the while. A paused feed
-- is left as it is.
CREATE FUNCTION {feed_attempt}(feed_name text, now timestamptz DEFAULT NULL, OUT done {feed_refreshed},
                               OUT failures integer, OUT error text, OUT state text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  f {feed} := {feed_locked}(feed_name);
  began timestamptz := clock_timestamp();
  said text;
  kept text;
BEGIN
  failures := 0;
  IF f.state = 'paused' THEN
    RETURN;
  END IF;
  BEGIN
    done := {feed_refresh}(feed_name);
  EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, said = MESSAGE_TEXT;
    kept := {feed_told}(state, said);
  END;
  UPDATE {feed_schedule} s
  SET seen_at = CASE WHEN state IS NULL THEN coalesce(now, clock_timestamp()) ELSE s.seen_at END,
      took = CASE WHEN state IS NULL AND done.how = 'differential' AND done.seq IS NULL THEN s.took
                  ELSE clock_timestamp() - began END,
      failures = CASE WHEN state IS NULL THEN 0 ELSE s.failures + 1 END,
      failed_at = CASE WHEN state IS NULL THEN s.failed_at ELSE coalesce(now, clock_timestamp()) END,
      error = kept
  WHERE s.feed_id = f.id RETURNING s.failures, s.error INTO failures, error;
END $feed$;

-- The same for a scheduler in the database: it sees the error, too, and who reads the deltas is woken after the commit. A
-- procedure that commits may not set a search_path: all names here are qualified.
CREATE PROCEDURE {feed_run}(feed_name text) LANGUAGE plpgsql AS $feed$
DECLARE
  did record;
BEGIN
  SELECT (a.done).seq AS seq, a.error, a.state INTO did FROM {feed_attempt}(feed_name) AS a;
  COMMIT;
  IF did.error IS NOT NULL THEN
    RAISE EXCEPTION 'feed %: %', feed_name, did.error USING ERRCODE = did.state;
  END IF;
  IF did.seq IS NOT NULL THEN
    PERFORM pg_catalog.pg_notify('{channel}', '');
  END IF;
END $feed$;

-- How much is kept in chunks. NULL: the current role may not see them.
CREATE FUNCTION {feed_bytes}(feed integer) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $feed$
BEGIN
  IF NOT has_column_privilege(to_regclass(format('%s.%I', {feed_home}(), '{feed_chunk_name}')), 'payload', 'SELECT') THEN
    RETURN NULL;
  END IF;
  RETURN (SELECT coalesce(sum(octet_length(c.payload)), 0) FROM {feed_chunk} c WHERE c.feed_id = feed);
END $feed$;

-- How many rows of the table are not as the query says although no change waits that could be why: one statement, one
-- snapshot for rows and changes. 0 where nothing tells of changes.
CREATE FUNCTION {feed_wrong}(feed_name text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  f {feed};
  waiting text;
  answer bigint := 0;
BEGIN
  SELECT * INTO f FROM {feed} g WHERE g.name = feed_name AND g.state = 'active';
  waiting := {feed_meant}(f);
  IF waiting IS NOT NULL THEN
    EXECUTE format(
      'WITH k AS MATERIALIZED (%1$s) SELECT count(*) FROM %2$s o FULL JOIN %3$s n ON %4$s '
      'WHERE (o.%5$I IS NULL OR n.%5$I IS NULL OR ROW(%6$s)::%2$s *<> ROW(%7$s)::%2$s) '
      'AND NOT EXISTS (SELECT FROM k WHERE %8$s) AND NOT EXISTS (SELECT FROM k WHERE %9$s) '
      'AND NOT EXISTS (SELECT FROM %10$s s WHERE s.feed_id = $1)',
      waiting, f.relation, f.query_view,
      {feed_equal}(f.relation::regclass, f.key, 'o', 'n'), f.key[1], {feed_list}(f.columns, 'o.'),
      {feed_list}(f.columns, 'n.'), {feed_equal}(f.relation::regclass, f.scope, 'k', 'o'),
      {feed_equal}(f.relation::regclass, f.scope, 'k', 'n'), format('%s.%I', {feed_home}(), '{feed_stale_name}'))
    INTO answer USING f.id;
  END IF;
  RETURN answer;
END $feed$;
