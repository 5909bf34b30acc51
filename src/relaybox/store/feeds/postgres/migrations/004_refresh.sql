-- Refreshing: the order of steps is the proof. What is touched commits with its change; step 4 takes exactly the touched rows
-- that its snapshot sees, and looks with that snapshot; it sees all that the last refresh saw, because it is later than the
-- lock of step 1. So whatever it sees and the last one did not has left its mark among what it takes.

-- The work tables of this session, made once: `new` is what the query says, `scope` what was looked at, `diff` pairs of rows.
-- They are named by what they depend on.
CREATE FUNCTION {feed_work}(f {feed}) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  name text := format('relaybox_%s_%s_%s', f.relation::regclass::oid, f.version, current_user::regrole::oid);
  part text;
BEGIN
  IF to_regclass('pg_temp.' || name || '_diff') IS NULL THEN
    EXECUTE format('CREATE TEMP TABLE %s_new ON COMMIT DELETE ROWS AS SELECT * FROM %s WITH NO DATA', name, f.relation);
    EXECUTE format('CREATE TEMP TABLE %s_scope ON COMMIT DELETE ROWS AS SELECT %s FROM %s WITH NO DATA', name,
                   {feed_list}(f.scope), f.relation);
    EXECUTE format('CREATE TEMP TABLE %s_diff (old %s, new %s) ON COMMIT DELETE ROWS', name, f.relation, f.relation);
  ELSE    -- a second refresh in one transaction
    FOREACH part IN ARRAY ARRAY['new', 'scope', 'diff'] LOOP
      EXECUTE format('DELETE FROM pg_temp.%s_%s', name, part);
    END LOOP;
  END IF;
  RETURN 'pg_temp.' || name;
END $feed$;

-- Step 2: no TRUNCATE from here on, which heeds no snapshot, and no change of columns.
CREATE FUNCTION {feed_hold}(f {feed}) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  tables text;
BEGIN
  SELECT string_agg(c.oid::regclass::text, ', ' ORDER BY c.oid) INTO tables FROM pg_class c
  WHERE c.oid = ANY (f.reads) AND c.relkind IN ('r', 'p');
  IF tables IS NOT NULL THEN
    EXECUTE format('LOCK TABLE %s IN ACCESS SHARE MODE', tables);
  END IF;
END $feed$;

-- Step 3: triggers that are not as they were are mended, and all is evaluated, because changes went unseen meanwhile.
CREATE FUNCTION {feed_mend}(f {feed}) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  print text := {feed_print}(f.id);
BEGIN
  IF print <> f.fingerprint THEN
    PERFORM {feed_install}(s) FROM {feed_source} s WHERE s.feed_id = f.id ORDER BY s.ord;
    INSERT INTO {feed_stale} (feed_id, reason) VALUES (f.id, 'triggers or partitions changed');
    print := {feed_print}(f.id);
  END IF;
  RETURN print;
END $feed$;

-- How many touched rows wait.
CREATE FUNCTION {feed_waiting}(feed integer) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  waiting text;
  answer bigint := 0;
BEGIN
  SELECT string_agg(format('(SELECT count(*) FROM %s)', s.touched), ' + ') INTO waiting
  FROM {feed_source} s WHERE s.feed_id = feed;
  IF waiting IS NOT NULL THEN
    EXECUTE 'SELECT ' || waiting INTO answer;
  END IF;
  RETURN answer;
END $feed$;

-- Touched rows may mean scopes that are NULL in part, for which nothing is looked up. That is right unless the query says
-- something of them, which is asked as far as they are known: by their other columns.
CREATE FUNCTION {feed_nowhere}(f {feed}, work text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  unknown text[];
  there boolean;
BEGIN
  FOR unknown IN EXECUTE format('SELECT DISTINCT array_remove(ARRAY[%s], NULL) FROM %s_scope WHERE NOT ROW(%s) IS NOT NULL',
    (SELECT string_agg(format('CASE WHEN %I IS NULL THEN %L END', u, u), ', ') FROM unnest(f.scope) AS u), work,
    {feed_list}(f.scope))
  LOOP
    EXECUTE format(
      'SELECT EXISTS (SELECT FROM %s_scope k CROSS JOIN LATERAL (SELECT FROM %s q WHERE %s OFFSET 0) r)', work, f.query_view,
      concat_ws(' AND ', (SELECT string_agg(format('q.%1$I IS NULL AND k.%1$I IS NULL', u), ' AND ') FROM unnest(unknown) AS u),
                {feed_equal}(f.query_view::regclass, ARRAY(SELECT u FROM unnest(f.scope) AS u WHERE u <> ALL (unknown)),
                             'q', 'k')))
    INTO there;
    IF there THEN
      RAISE EXCEPTION 'feed %: its query gives rows whose key or scope (%) is NULL', f.name, {feed_list}(unknown)
        USING ERRCODE = 'RBF01';
    END IF;
  END LOOP;
END $feed$;

-- Step 4, differential: one statement, one snapshot for what is taken, which scopes that means, and what the query says of
-- them. With two statements a transaction could commit between taking and looking, and be seen by half.
CREATE FUNCTION {feed_look}(f {feed}, work text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  taken text;
  said bigint;
BEGIN
  SELECT string_agg(format('d%s AS (DELETE FROM %s), ', s.ord, s.touched), '' ORDER BY s.ord)
  INTO taken FROM {feed_source} s WHERE s.feed_id = f.id;
  EXECUTE format(
    'WITH %s k AS (INSERT INTO %s_scope %s RETURNING %s) '
    'INSERT INTO %s_new SELECT r.* FROM (SELECT %s FROM k) a CROSS JOIN LATERAL %s(%s) r',
    taken, work, {feed_meant}(f), {feed_list}(f.scope), work,
    (SELECT string_agg(format('array_agg(%I) AS k%s', u.name, u.o), ', ') FROM unnest(f.scope) WITH ORDINALITY AS u(name, o)),
    f.rows_of, (SELECT string_agg('a.k' || o, ', ' ORDER BY o) FROM generate_subscripts(f.scope, 1) AS o));
  GET DIAGNOSTICS said = ROW_COUNT;
  EXECUTE format('ANALYZE %1$s_scope, %1$s_new', work);
  PERFORM {feed_nowhere}(f, work);
  RETURN said;
END $feed$;

-- Step 4, full: marks are taken first, then all is evaluated. What commits in between is seen now and once more.
CREATE FUNCTION {feed_look_at_all}(f {feed}, work text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  touched text;
  said bigint;
BEGIN
  FOR touched IN SELECT s.touched FROM {feed_source} s WHERE s.feed_id = f.id ORDER BY s.ord LOOP
    EXECUTE format('DELETE FROM %s', touched);
  END LOOP;
  DELETE FROM {feed_stale} s WHERE s.feed_id = f.id;
  EXECUTE format('INSERT INTO %s_new SELECT %s FROM %s', work, {feed_list}(f.columns), f.query_view);
  GET DIAGNOSTICS said = ROW_COUNT;
  EXECUTE format('ANALYZE %s_new', work);
  RETURN said;
END $feed$;

-- The rows of the kept table that were looked at.
CREATE FUNCTION {feed_kept}(f {feed}, work text, partial boolean) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $feed$
  SELECT CASE WHEN partial THEN format('(SELECT m.* FROM %s_scope k JOIN %s m ON %s)', work, f.relation,
                                       {feed_equal}(f.relation::regclass, f.scope, 'k', 'm'))
              ELSE f.relation END
$feed$;

-- Step 5: pairs of rows that differ. By image where values that differ can be equal (1.0 and 1.00) or cannot be compared.
CREATE FUNCTION {feed_compare}(f {feed}, work text, partial boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  same boolean := (SELECT bool_and({feed_exact}(a.atttypid)) FROM pg_attribute a
                   WHERE a.attrelid = f.relation::regclass AND a.attnum > 0 AND NOT a.attisdropped);
BEGIN
  EXECUTE format(
    'INSERT INTO %1$s_diff SELECT CASE WHEN o.%2$I IS NOT NULL THEN ROW(%3$s)::%5$s END, '
    'CASE WHEN n.%2$I IS NOT NULL THEN ROW(%4$s)::%5$s END '
    'FROM %6$s o FULL JOIN %1$s_new n ON %7$s WHERE o.%2$I IS NULL OR n.%2$I IS NULL OR %8$s',
    work, f.key[1], {feed_list}(f.columns, 'o.'), {feed_list}(f.columns, 'n.'), f.relation,
    {feed_kept}(f, work, partial),
    {feed_equal}(f.relation::regclass, f.key, 'o', 'n'),
    format(CASE WHEN same THEN 'ROW(%s) IS DISTINCT FROM ROW(%s)' ELSE 'ROW(%1$s)::%3$s *<> ROW(%2$s)::%3$s' END,
           {feed_list}(f.columns, 'o.'), {feed_list}(f.columns, 'n.'), f.relation));
END $feed$;

-- Step 6: the differences go into the kept table. It has then as many rows as the query said, unless that gave a key twice.
CREATE FUNCTION {feed_merge}(f {feed}, work text, partial boolean, said bigint, OUT inserted bigint, OUT deleted bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  pairs bigint;
  none bigint;
  there bigint;
BEGIN
  EXECUTE format('SELECT count(*) FILTER (WHERE (new).%1$I IS NOT NULL), count(*) FILTER (WHERE (old).%1$I IS NOT NULL), '
                 'count(*), count(*) FILTER (WHERE (new).%1$I IS NULL AND (old).%1$I IS NULL) FROM %2$s_diff', f.key[1], work)
  INTO inserted, deleted, pairs, none;
  IF none > 0 THEN
    RAISE EXCEPTION 'feed %: its query gives rows whose key (%) is NULL', f.name, {feed_list}(f.key) USING ERRCODE = 'RBF01';
  END IF;
  IF pairs > 1000 THEN
    EXECUTE format('ANALYZE %s_diff', work);
  END IF;
  EXECUTE format('DELETE FROM %s m USING %s_diff x WHERE (x.new).%I IS NULL AND %s', f.relation, work, f.key[1],
                 {feed_equal}(f.relation::regclass, f.key, 'm', '(x.old)'));
  EXECUTE format('UPDATE %1$s m SET (%2$s) = ROW(%3$s) FROM %4$s_diff x '
                 'WHERE (x.new).%5$I IS NOT NULL AND (x.old).%5$I IS NOT NULL AND %6$s', f.relation, {feed_list}(f.columns),
                 {feed_list}(f.columns, '(x.new).'), work, f.key[1],
                 {feed_equal}(f.relation::regclass, f.key, 'm', '(x.old)'));
  EXECUTE format('INSERT INTO %s SELECT (x.new).* FROM %s_diff x WHERE (x.old).%I IS NULL', f.relation, work, f.key[1]);
  EXECUTE format('SELECT count(*) FROM %s o', {feed_kept}(f, work, partial)) INTO there;
  IF there <> said THEN
    RAISE unique_violation;
  END IF;
EXCEPTION
  WHEN unique_violation THEN
    RAISE EXCEPTION 'feed %: its query gives a key (%) more than once', f.name, {feed_list}(f.key) USING ERRCODE = 'RBF02';
  WHEN not_null_violation THEN
    RAISE EXCEPTION 'feed %: its query gives rows whose key or scope is NULL', f.name USING ERRCODE = 'RBF01';
END $feed$;

-- A row of the table, by this name (m.* where m may be the name of a column), as the JSON that readers get. A column that is
-- the JSON null is left out: as null it would be the NULL of SQL.
CREATE FUNCTION {feed_line}(f {feed}, m text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  here text;
  there text;
BEGIN
  SELECT string_agg(n.is_null, ' OR '), string_agg(format('e.key = %L AND %s', n.name, n.is_null), ' OR ') INTO there, here
  FROM (SELECT a.attname AS name, format('json_typeof(to_json((%s).%I)) = ''null''', m, a.attname) AS is_null
        FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid = f.relation::regclass AND a.attnum > 0 AND NOT a.attisdropped
          AND coalesce(nullif(t.typbasetype, 0), t.oid) IN ('json'::regtype, 'jsonb'::regtype)) n;
  RETURN CASE WHEN there IS NULL THEN format('row_to_json(%s)::text', m) ELSE format(
    '(CASE WHEN %1$s THEN (SELECT json_object_agg(e.key, e.value) FROM json_each(row_to_json(%2$s)) e WHERE NOT (%3$s)) '
    'ELSE row_to_json(%2$s) END)::text', there, m, here) END;
END $feed$;

-- Step 7, small: `lines` (op, r) as one JSON. NULL: they are larger than an event may be. No more than that comes into memory.
CREATE FUNCTION {feed_inline}(f {feed}, lines text, whole bigint, flags text) RETURNS bytea
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  inserted text;
  deleted text;
  count bigint;
  body bytea;
BEGIN
  EXECUTE format(
    'SELECT string_agg(r, '','') FILTER (WHERE op = ''I''), string_agg(r, '','') FILTER (WHERE op = ''D''), count(*) '
    'FROM (SELECT op, r, sum(octet_length(r) + 1) OVER (ROWS UNBOUNDED PRECEDING) AS upto FROM (%s) a) b WHERE upto <= $1',
    lines)
  INTO inserted, deleted, count USING f.inline_bytes;
  body := convert_to(format('{"v":1%s,"inserted":[%s],"deleted":[%s]}', flags, inserted, deleted), 'UTF8');
  RETURN CASE WHEN count = whole AND octet_length(body) <= f.inline_bytes THEN body END;
END $feed$;

-- Step 7, large: `line` of those rows m of a table that are `meant`, in chunks from number `chunk` on, some ten chunks a
-- statement by ranges of pages. So memory is bounded. A chunk of wide rows ends at 8 MiB. With OFFSET 0 the JSON of a row is
-- made once, not for its length again.
CREATE FUNCTION {feed_chop}(f {feed}, delta bigint, op text, relation text, line text, meant text, INOUT chunk integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  pages bigint := pg_relation_size(relation::regclass) / current_setting('block_size')::integer;
  rows bigint;
  step bigint;
  page bigint := 0;
  made integer;
BEGIN
  EXECUTE format('SELECT count(*) FROM %s', relation) INTO rows;
  step := greatest(1, (10.0 * f.chunk_rows * pages / greatest(rows, 1))::bigint);
  WHILE page < pages LOOP
    EXECUTE format(
      'INSERT INTO %s.%I SELECT $1, $2, $3 + row_number() OVER (ORDER BY g, h) - 1, %L, count(*), '
      '''['' || string_agg(r, '','') || '']'' FROM (SELECT r, (row_number() OVER w - 1) / $4 AS g, '
      'sum(octet_length(r)) OVER w / 8388608 AS h FROM (SELECT %s AS r FROM %s m '
      'WHERE m.ctid >= $5 AND m.ctid < $6 AND %s OFFSET 0) z WINDOW w AS (ROWS UNBOUNDED PRECEDING)) y '
      'GROUP BY g, h', {feed_home}(), '{feed_chunk_name}', op, {feed_line}(f, line), relation, meant)
    USING f.id, delta, chunk, f.chunk_rows, format('(%s,0)', page)::tid, format('(%s,0)', page + step)::tid;
    GET DIAGNOSTICS made = ROW_COUNT;
    chunk := chunk + made;
    page := page + step;
  END LOOP;
END $feed$;

-- Step 7, large, of a delta with deleted rows and inserted ones: they are in as many chunks, the deleted ones first, and the
-- k-th chunks of both have the same keys, though one may be empty. Who wants them in pairs needs two chunks, which have 8 MiB
-- of wide rows. Inserted ones are numbered from 2^30 on until it is known how many come before them.
CREATE FUNCTION {feed_chop_pairs}(f {feed}, delta bigint, pairs text) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  far CONSTANT integer := 1 << 30;
  pages bigint := pg_relation_size(pairs::regclass) / current_setting('block_size')::integer;
  rows bigint;
  step bigint;
  page bigint := 0;
  parts integer := 0;
  made integer;
BEGIN
  EXECUTE format('SELECT count(*) FROM %s', pairs) INTO rows;
  step := greatest(1, (10.0 * f.chunk_rows * pages / rows)::bigint);
  WHILE page < pages LOOP
    EXECUTE format(
      'WITH p AS (SELECT $3 + row_number() OVER (ORDER BY g, h) - 1 AS part, count(o) AS gone, count(n) AS came, '
      'concat(''['', string_agg(o, '',''), '']'') AS o, concat(''['', string_agg(n, '',''), '']'') AS n FROM ('
      'SELECT o, n, (row_number() OVER w - 1) / $4 AS g, '
      'sum(coalesce(octet_length(o), 0) + coalesce(octet_length(n), 0)) OVER w / 8388608 AS h FROM ('
      'SELECT CASE WHEN (old).%2$I IS NOT NULL THEN %5$s END AS o, '
      'CASE WHEN (new).%2$I IS NOT NULL THEN %6$s END AS n FROM %1$s '
      'WHERE ctid >= $5 AND ctid < $6 OFFSET 0) z WINDOW w AS (ROWS UNBOUNDED PRECEDING)) y GROUP BY g, h), '
      'd AS (INSERT INTO %3$s.%4$I SELECT $1, $2, part, ''D'', gone, o FROM p), '
      'i AS (INSERT INTO %3$s.%4$I SELECT $1, $2, part + $7, ''I'', came, n FROM p) SELECT count(*) FROM p',
      pairs, f.key[1], {feed_home}(), '{feed_chunk_name}', {feed_line}(f, 'old'), {feed_line}(f, 'new'))
    INTO made
    USING f.id, delta, parts, f.chunk_rows, format('(%s,0)', page)::tid, format('(%s,0)', page + step)::tid, far;
    parts := parts + made;
    page := page + step;
  END LOOP;
  UPDATE {feed_chunk} c SET chunk = c.chunk - far + parts WHERE c.feed_id = f.id AND c.n = delta AND c.chunk >= far;
  RETURN 2 * parts;
END $feed$;

-- Step 7, the event: as any other is written to the log of a topic, in one statement with the check that the topic is as it
-- was read a moment ago. The transaction has its number before the event has one.
CREATE FUNCTION {feed_write}(f {feed}, id text, payload bytea, headers text, OUT shard smallint, OUT seq bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  t {topic};
  log text;
  marks text;
BEGIN
  FOR try IN 1..3 LOOP
    SELECT * INTO t FROM {topic} k WHERE k.id = f.topic_id;
    log := format('%s.%I', {feed_home}(), t.relation);
    shard := (('x' || substr(md5(f.name), 1, 8))::bit(32)::bigint & 2147483647) % t.shards;
    marks := format('m AS (INSERT INTO %s.%I (seq, required, created_at) SELECT seq, %s, at FROM d), ', {feed_home}(),
                    '{mark_name}_' || t.id, CASE t.tracking WHEN 'bitmap' THEN 'required' ELSE 'audience' END);
    EXECUTE format(
      'WITH x AS MATERIALIZED (SELECT pg_current_xact_id() AS xid), '
      't AS MATERIALIZED (SELECT x.xid, t.required, t.audience FROM x, %s t WHERE t.id = $1 AND t.version = $2 '
      'AND NOT (t.block_writes AND t.active = 0)), '
      'd AS MATERIALIZED (SELECT nextval(%L) AS seq, clock_timestamp() AS at, t.* FROM t), %s '
      'e AS (INSERT INTO %s (seq, xid, shard, event_id, event_type, aggregate_id, payload, headers, occurred_at, created_at) '
      'SELECT seq, xid, $3, $4, ''feed.delta'', $5, $6, $7, at, at FROM d) SELECT seq FROM d',
      format('%s.%I', {feed_home}(), '{topic_name}'), format('%s.%I', {feed_home}(), t.relation || '_seq'),
      CASE t.tracking WHEN 'offset' THEN '' ELSE marks END, log)
    INTO seq USING f.topic_id, t.version, shard, id, f.name, payload, headers;
    IF seq IS NOT NULL THEN
      RETURN;
    END IF;
    IF t.block_writes AND t.active = 0 THEN
      RAISE EXCEPTION 'feed %: topic % blocks writes while it has no active group', f.name, t.name USING ERRCODE = 'RBF08';
    END IF;
  END LOOP;
  RAISE EXCEPTION 'topic % changes all the time; repeat the transaction', t.name USING ERRCODE = '40001';
END $feed$;

-- Step 7: the event with its headers, and where it stands if its rows are in chunks.
CREATE FUNCTION {feed_tell}(f {feed}, id text, body bytea, chunks integer, INOUT done {feed_refreshed})
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  at record := {feed_write}(f, id, body, json_build_object(
    'feed', f.name, 'feed-epoch', f.epoch::text, 'feed-n', done.n::text, 'feed-inserted', done.inserted::text,
    'feed-deleted', done.deleted::text, 'feed-claim-check', done.claim_check::text,
    'feed-full-refresh', (done.how = 'full')::text, 'feed-snapshot', (done.how = 'snapshot')::text,
    'feed-key', to_json(f.key)::text)::text);
BEGIN
  done.seq := at.seq;
  IF done.claim_check THEN
    INSERT INTO {feed_delta} (feed_id, n, shard, seq, chunks, inserted, deleted)
    VALUES (f.id, done.n, at.shard, at.seq, chunks, done.inserted, done.deleted);
  END IF;
END $feed$;

-- Step 7: the delta, inline or by claim check.
CREATE FUNCTION {feed_emit}(f {feed}, work text, INOUT done {feed_refreshed})
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  flags text := CASE done.how WHEN 'full' THEN ',"full_refresh": true' ELSE '' END;
  id text := gen_random_uuid()::text;
  rows bigint := done.inserted + done.deleted;
  pairs text := work || '_diff';
  body bytea;
  chunks integer;
BEGIN
  done.n := f.n + 1;
  IF rows <= f.inline_rows THEN
    body := {feed_inline}(f, format(
      'SELECT ''D'' AS op, %3$s AS r FROM %1$s WHERE (old).%2$I IS NOT NULL UNION ALL '
      'SELECT ''I'', %4$s FROM %1$s WHERE (new).%2$I IS NOT NULL', pairs, f.key[1], {feed_line}(f, 'old'),
      {feed_line}(f, 'new')), rows, flags);
  END IF;
  done.claim_check := body IS NULL;
  IF done.claim_check THEN
    chunks := CASE
      WHEN done.inserted > 0 AND done.deleted > 0 THEN {feed_chop_pairs}(f, done.n, pairs)
      WHEN done.deleted > 0 THEN {feed_chop}(f, done.n, 'D', pairs, 'm.old', 'true', 0)
      ELSE {feed_chop}(f, done.n, 'I', pairs, 'm.new', 'true', 0) END;
    body := convert_to(format('{"v":1,"claim_check": true%s,"inserted_count":%s,"deleted_count":%s,"refresh_id":"%s"}',
                              flags, done.inserted, done.deleted, id), 'UTF8');
  END IF;
  done := {feed_tell}(f, id, body, chunks, done);
END $feed$;

-- Brings a feed up to date in the caller's transaction, and writes one delta of what that changed. `how`: NULL as the feed
-- says, or 'full'. Plans are for these rows, whatever the session prefers for its own statements; at the usual cost of a page,
-- that of disks that turn, a refresh of some per cent would read the whole kept table.
CREATE FUNCTION {feed_refresh}(feed_name text, how text DEFAULT NULL) RETURNS {feed_refreshed}
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET random_page_cost = 1.1 AS $feed$
DECLARE
  f {feed};
  done {feed_refreshed};
  merged record;
  print text;
  work text;
  waiting bigint;
  said bigint;
  total float8;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'feed %: a refresh needs a READ COMMITTED transaction, this one is %', feed_name,
                    upper(current_setting('transaction_isolation')) USING ERRCODE = 'RBF12';
  END IF;
  f := {feed_locked}(feed_name);                     -- 1. held to the commit: deltas are in its order
  IF f.state = 'paused' THEN
    RAISE EXCEPTION 'feed % is paused; resume it first', feed_name USING ERRCODE = 'RBF13';
  END IF;
  IF to_regclass(f.query_view) IS NULL OR to_regclass(f.relation) IS NULL THEN
    RAISE EXCEPTION 'feed %: %', f.name, CASE WHEN to_regclass(f.relation) IS NULL
      THEN 'its table was dropped; drop the feed, too, and create it anew'
      ELSE 'a table that it reads was dropped with CASCADE; create the feed again' END USING ERRCODE = 'RBF15';
  END IF;
  PERFORM {feed_hold}(f);                            -- 2.
  print := {feed_mend}(f);                           -- 3.
  done.reasons := ARRAY(SELECT DISTINCT s.reason FROM {feed_stale} s WHERE s.feed_id = f.id ORDER BY s.reason);
  waiting := {feed_waiting}(f.id);
  done.how := 'differential';
  IF f.mode = 'full' OR how = 'full' OR cardinality(done.reasons) > 0 THEN
    done.how := 'full';
  ELSIF f.mode = 'auto' AND waiting > 1000 THEN
    SELECT greatest(c.reltuples, 0) INTO total FROM pg_class c WHERE c.oid = f.relation::regclass;
    IF waiting > f.auto_share * total THEN           -- an estimate, of which there is none before the first ANALYZE
      EXECUTE format('SELECT count(*) FROM %s', f.relation) INTO total;
    END IF;
    IF waiting > f.auto_share * total THEN
      done.how := 'full';
    END IF;
  END IF;
  done.n := f.n;
  done.inserted := 0;
  done.deleted := 0;
  done.claim_check := false;
  IF done.how = 'differential' AND waiting = 0 AND f.skip_empty THEN
    PERFORM {feed_well}(f.id, false, NULL);
    RETURN done;
  END IF;

  work := {feed_work}(f);
  IF done.how <> 'full' THEN                         -- 4.
    said := {feed_look}(f, work);
    IF {feed_print}(f.id) <> print THEN              -- since step 3: changes may have gone unseen
      print := {feed_mend}(f);
      done.reasons := ARRAY(SELECT DISTINCT s.reason FROM {feed_stale} s WHERE s.feed_id = f.id ORDER BY s.reason);
      done.how := 'full';
      work := {feed_work}(f);
    END IF;
  END IF;
  IF done.how = 'full' THEN
    said := {feed_look_at_all}(f, work);
  END IF;
  PERFORM {feed_compare}(f, work, done.how <> 'full');   -- 5.
  merged := {feed_merge}(f, work, done.how <> 'full', said);   -- 6.
  done.inserted := merged.inserted;
  done.deleted := merged.deleted;
  IF done.inserted + done.deleted > 0 OR NOT f.skip_empty THEN
    done := {feed_emit}(f, work, done);              -- 7.
  END IF;
  UPDATE {feed} g
  SET n = done.n, fingerprint = print, refreshed_at = clock_timestamp(), last_how = done.how,
      last_inserted = done.inserted, last_deleted = done.deleted, last_seq = coalesce(done.seq, g.last_seq)
  WHERE g.id = f.id;
  PERFORM {feed_well}(f.id, done.how = 'full', CASE
    WHEN done.how = 'differential' OR f.mode = 'full' OR how = 'full' OR done.reasons = ARRAY['first'] THEN NULL
    WHEN cardinality(done.reasons) > 0 THEN array_to_string(done.reasons, ', ')
    ELSE format('%s changes for %s rows', waiting, total) END);
  RETURN done;
END $feed$;

-- How many rows of the table are not as the query says, what waits (a mark is for all rows), and whether the triggers are as
-- they were left. Nothing is changed.
CREATE FUNCTION {feed_drift}(feed_name text, OUT rows bigint, OUT waiting bigint, OUT captured boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  f {feed};
BEGIN
  SELECT * INTO f FROM {feed} g WHERE g.name = feed_name;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no feed %', feed_name USING ERRCODE = 'RBF00';
  END IF;
  waiting := {feed_waiting}(f.id) + (SELECT count(*) FROM {feed_stale} s WHERE s.feed_id = f.id);
  captured := f.state = 'active' AND f.fingerprint = {feed_print}(f.id);
  EXECUTE format('SELECT count(*) FROM %1$s o FULL JOIN %2$s n ON %3$s '
                 'WHERE o.%4$I IS NULL OR n.%4$I IS NULL OR ROW(%5$s)::%1$s *<> ROW(%6$s)::%1$s', f.relation, f.query_view,
                 {feed_equal}(f.relation::regclass, f.key, 'o', 'n'), f.key[1], {feed_list}(f.columns, 'o.'),
                 {feed_list}(f.columns, 'n.')) INTO rows;
END $feed$;
