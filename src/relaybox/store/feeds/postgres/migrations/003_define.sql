-- Making, changing and dropping feeds. Errors of ours have states of their own (RBF..), which clients make errors of theirs.

-- Somebody's text as a view, read with the search_path of whom it comes from. No operator may stand between the two changes.
-- `what`: it is, for who hears that it is refused. In parentheses, because of several statements all would be executed.
CREATE FUNCTION {feed_view}(view text, query text, path text, what text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  statement text := format(E'CREATE VIEW %s AS (%s\n)', view, rtrim(query, E'; \n\t\r'));
  answer text;
BEGIN
  PERFORM pg_catalog.set_config('search_path', path, true);
  EXECUTE statement;
  PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
EXCEPTION
  WHEN insufficient_privilege THEN
    RAISE;
  WHEN syntax_error_or_access_rule_violation OR feature_not_supported OR data_exception OR invalid_schema_name THEN
    GET STACKED DIAGNOSTICS answer = MESSAGE_TEXT;
    RAISE EXCEPTION '% is refused: %', what, answer USING ERRCODE = 'RBF19';
END $feed$;

-- The schema of our tables, where those of feeds are made too.
CREATE FUNCTION {feed_home}() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $feed$
  SELECT t.typnamespace::regnamespace::text FROM pg_type t WHERE t.oid = pg_typeof(NULL::{feed})::oid
$feed$;

-- The name of one of our tables of a feed.
CREATE FUNCTION {feed_part}(part text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $feed$
  SELECT format('%s.%I', {feed_home}(), '{feed_name}_' || part)
$feed$;


-- A name for a table that nothing bears, cut to 63 bytes; cut or taken ones are made unique by their hash.
CREATE FUNCTION {feed_free}(home text, wanted text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  short text := wanted;
  hashed text;
BEGIN
  IF octet_length(wanted) <= 63 AND to_regclass(format('%s.%I', home, wanted)) IS NULL THEN
    RETURN wanted;
  END IF;
  WHILE octet_length(short) > 55 LOOP
    short := left(short, -1);
  END LOOP;
  hashed := format('%s_%s', short, substr(md5(wanted), 1, 7));
  IF to_regclass(format('%s.%I', home, hashed)) IS NOT NULL THEN
    RAISE EXCEPTION 'tables % and % are there already: give the feed another table name', wanted, hashed
      USING ERRCODE = 'RBF09';
  END IF;
  RETURN hashed;
END $feed$;

-- Functions of a query that do not answer by its tables alone. NULL: there are none.
CREATE FUNCTION {feed_volatile}(view regclass) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $feed$
  WITH tree AS MATERIALIZED (
    SELECT r.ev_action::text AS text FROM {feed_views}(view) AS v JOIN pg_rewrite r ON r.ev_class = v),
  called AS (
    SELECT m[2]::oid AS proc FROM tree,
           regexp_matches(tree.text, '[:](funcid|opfuncid|aggfnoid|winfnoid) (\d+)', 'g') AS m
    UNION
    SELECT o.oprcode::oid FROM tree, regexp_matches(tree.text, '[:]opno (\d+)', 'g') AS m
    JOIN pg_operator o ON o.oid = m[1]::oid)
  SELECT string_agg(DISTINCT p.what, ', ') FROM (
    SELECT c.proc::regprocedure::text AS what FROM called c JOIN pg_proc f ON f.oid = c.proc
    WHERE f.provolatile = 'v'
       OR (f.provolatile = 's' AND (f.pronamespace <> 'pg_catalog'::regnamespace
           OR f.proname = ANY (ARRAY['now', 'transaction_timestamp', 'statement_timestamp', 'current_setting',
                                     'current_schema', 'current_schemas', 'current_database', 'pg_current_snapshot',
                                     'get_current_ts_config', 'to_tsvector', 'to_tsquery', 'plainto_tsquery',
                                     'phraseto_tsquery', 'websearch_to_tsquery', 'ts_headline'])
           OR f.proname LIKE 'txid\_%' OR f.proname LIKE 'has\_%\_privilege' OR f.proname LIKE '%\_to\_xml%'
           OR (f.proname = 'age' AND f.pronargs = 1)))
    UNION ALL
    SELECT 'a current date, time or user' FROM tree WHERE tree.text LIKE '%{SQLVALUEFUNCTION %'
    UNION ALL
    SELECT 'a sequence' FROM tree WHERE tree.text LIKE '%{NEXTVALUEEXPR %'
    UNION ALL
    SELECT 'a system column' FROM tree WHERE tree.text ~ '[:]varattno -[1-5]\M'    -- tableoid is the sixth
    UNION ALL
    SELECT format('row security of %s', r.relid) FROM {feed_reads}(view) AS r WHERE row_security_active(r.relid)) p
$feed$;

-- The plan of the query for one scope, node by node: `cond` is by what it is reached.
CREATE FUNCTION {feed_plan}(view text, scope text[])
RETURNS TABLE (node text, alias text, relation text, cond text, filter text, initial boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_material = off SET enable_memoize = off SET enable_indexscan = on
SET enable_bitmapscan = on SET enable_nestloop = on SET jit = off AS $feed$
DECLARE
  narrowed text;
  plan json;
BEGIN
  SELECT string_agg(replace({feed_equal}(view::regclass, ARRAY[s.name], 'q', 'x'), format('x.%I', s.name),
                            format('NULLIF(current_setting(''relaybox.scope'', true), '''')::%s',
                                   format_type(a.atttypid, a.atttypmod))), ' AND ')
  INTO narrowed FROM unnest(scope) AS s(name) JOIN pg_attribute a ON a.attrelid = view::regclass AND a.attname = s.name;
  EXECUTE format('EXPLAIN (FORMAT JSON, COSTS OFF, VERBOSE) SELECT * FROM %s q WHERE %s', view, narrowed) INTO plan;
  RETURN QUERY WITH RECURSIVE p AS (
    SELECT plan -> 0 -> 'Plan' AS n, false AS initial
    UNION ALL
    SELECT c.value, p.initial OR coalesce(c.value ->> 'Parent Relationship' = 'InitPlan', false)
    FROM p, json_array_elements(p.n -> 'Plans') AS c(value))
  SELECT p.n ->> 'Node Type', p.n ->> 'Alias', p.n ->> 'Relation Name',
         concat_ws(' ', p.n ->> 'Index Cond', p.n ->> 'Recheck Cond', p.n ->> 'TID Cond', p.n ->> 'Function Call'),
         p.n ->> 'Filter', p.initial
  FROM p;
END $feed$;

-- What speaks against looking at some scopes only; NULL: nothing. PostgreSQL pushes no condition below LIMIT, DISTINCT ON or
-- windows that are not partitioned by it: then the rows of one scope depend on others too. So each table must be reached by
-- the scope, or by a column of what was reached by it. This asks what could be done, not what is cheap on today's few rows.
CREATE FUNCTION {feed_remote}(view text, scope text[]) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  step record;
  own text;
BEGIN
  SELECT format('%I is an array', a.attname) INTO own FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
  WHERE a.attrelid = view::regclass AND a.attname = ANY (scope) AND t.typcategory = 'A';
  IF own IS NOT NULL THEN
    RETURN own;
  END IF;
  FOR step IN SELECT * FROM {feed_plan}(view, scope) LOOP
    IF step.filter LIKE '%relaybox.scope%' AND step.relation IS NULL THEN
      RETURN format('the condition on the scope stays above a %s', lower(step.node));
    END IF;
    CONTINUE WHEN step.relation IS NULL;
    IF step.initial THEN
      RETURN format('%s is read once for all scopes', step.relation);
    END IF;
    own := regexp_replace(step.cond, '''([^'']|'''')*''', '', 'g');
    own := replace(replace(own, quote_ident(step.alias) || '.', ''), step.alias || '.', '');
    IF step.cond NOT LIKE '%relaybox.scope%' AND own !~ '[\w"]\.[\w"]' AND own !~ '\$\d' THEN
      RETURN format('%s is read as a whole (is there an index for it?)', step.relation);
    END IF;
  END LOOP;
  RETURN NULL;
END $feed$;

-- Touched rows as scopes, in the snapshot of the statement that asks.
CREATE FUNCTION {feed_scopes}(source {feed_source}) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $feed$
  SELECT CASE WHEN source.scopes IS NULL THEN format('SELECT %s FROM %s', {feed_list}(source.mapped), source.touched)
              ELSE format('SELECT * FROM %s', source.scopes) END
$feed$;

-- The scopes that a feed's touched rows mean, each once and of its own type: that of what is mapped may be another, in which
-- more values differ. Columns of it may be NULL: an item of no order. NULL: it has no sources.
CREATE FUNCTION {feed_meant}(feed {feed}) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $feed$
  SELECT format('SELECT DISTINCT %s FROM (%s) u(%s)',
    (SELECT string_agg(format('u.%1$I::%2$s AS %1$I', s.name, format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY s.o)
     FROM unnest(feed.scope) WITH ORDINALITY AS s(name, o)
     JOIN pg_attribute a ON a.attrelid = feed.relation::regclass AND a.attname = s.name),
    string_agg(format('(%s)', {feed_scopes}(s)), ' UNION ALL ' ORDER BY s.ord), {feed_list}(feed.scope))
  FROM {feed_source} s WHERE s.feed_id = feed.id HAVING count(*) > 0
$feed$;

-- One source with its mapping: {"table": …, "columns": […], "resolve": …, "capture": "statement" | "row"}.
CREATE FUNCTION {feed_map}(feed {feed}, ord integer, mapping jsonb, path text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  source {feed_source};
  named text := mapping ->> 'table';
  missing text;
  answer text;
BEGIN
  PERFORM pg_catalog.set_config('search_path', path, true);
  source.relid := pg_catalog.to_regclass(named);
  PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  IF source.relid IS NULL THEN
    RAISE EXCEPTION 'feed %: there is no table % to map', feed.name, named USING ERRCODE = 'RBF03';
  END IF;
  IF (SELECT c.relkind FROM pg_class c WHERE c.oid = source.relid) NOT IN ('r', 'p') THEN
    RAISE EXCEPTION 'feed %: % is no table that can have triggers; use mode full', feed.name, source.relid
      USING ERRCODE = 'RBF04';
  END IF;
  IF NOT (SELECT pg_has_role(c.relowner, 'USAGE') FROM pg_class c WHERE c.oid = source.relid) THEN
    RAISE EXCEPTION 'feed %: % belongs to another role, and only its owner may add triggers; create the feed as that role, '
                    'or use mode full', feed.name, source.relid USING ERRCODE = 'RBF07';
  END IF;
  source.mapped := ARRAY(SELECT jsonb_array_elements_text(mapping -> 'columns'));
  SELECT string_agg(m, ', ') INTO missing FROM unnest(source.mapped) AS m
  WHERE NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = source.relid AND a.attname = m AND a.attnum > 0
                                                     AND NOT a.attisdropped AND a.attgenerated <> 'v');
  IF missing IS NOT NULL OR cardinality(source.mapped) = 0 THEN
    RAISE EXCEPTION 'feed %: the mapping of % needs columns of that table that triggers see (virtual ones they do not), and '
                    'has none or %', feed.name, source.relid, missing USING ERRCODE = 'RBF03';
  END IF;
  source.feed_id := feed.id;
  source.ord := ord;
  source.used := ARRAY[]::text[];
  source.by_row := coalesce(mapping ->> 'capture' = 'row', false);
  source.touched := {feed_part}(format('%s_%s_touched', feed.id, ord));
  source.captured := {feed_part}(format('%s_%s_capture', feed.id, ord));
  EXECUTE format('CREATE TABLE %s AS SELECT %s FROM %s WITH NO DATA', source.touched, {feed_list}(source.mapped),
                 source.relid);
  EXECUTE format('ALTER TABLE %s SET (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000, '
                 'autovacuum_vacuum_cost_delay = 0)', source.touched);
  IF mapping ->> 'resolve' IS NOT NULL THEN
    source.scopes := {feed_part}(format('%s_%s_scopes', feed.id, ord));
    PERFORM {feed_view}(source.scopes, format('WITH touched AS (SELECT DISTINCT %s FROM %s) %s',
                        {feed_list}(source.mapped), source.touched, mapping ->> 'resolve'), path,
                        format('feed %s: what resolves %s', feed.name, source.relid));
    answer := {feed_volatile}(source.scopes::regclass);
    IF answer IS NOT NULL THEN
      RAISE EXCEPTION 'feed %: what resolves % does not answer by tables alone (%)', feed.name, source.relid, answer
        USING ERRCODE = 'RBF05';
    END IF;
  END IF;
  INSERT INTO {feed_source} SELECT source.*;
  -- what could only fail in a writer's statement, or at a refresh, fails here
  BEGIN
    EXECUTE format('EXPLAIN SELECT DISTINCT %s FROM %s', {feed_list}(source.mapped), source.touched);
    EXECUTE format('EXPLAIN SELECT %s FROM %s UNION ALL (%s)', {feed_list}(feed.scope), feed.relation,
                   {feed_scopes}(source));
  EXCEPTION WHEN datatype_mismatch OR undefined_function OR syntax_error OR cannot_coerce THEN
    GET STACKED DIAGNOSTICS answer = MESSAGE_TEXT;
    RAISE EXCEPTION 'feed %: the mapping of % does not give the scope (%): %', feed.name, source.relid,
                    {feed_list}(feed.scope), answer USING ERRCODE = 'RBF03';
  END;
END $feed$;

-- The tables that a feed reads, by its query and by what resolves its sources, and the columns it uses of each.
CREATE FUNCTION {feed_tables}(feed {feed}) RETURNS TABLE (relid regclass, used text[])
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $feed$
  SELECT r.relid, array_agg(DISTINCT u.name) FILTER (WHERE u.name IS NOT NULL) FROM (
    SELECT q.relid, q.used FROM {feed_reads}(feed.query_view::regclass) AS q
    UNION ALL
    SELECT q.relid, q.used FROM {feed_source} s CROSS JOIN LATERAL {feed_reads}(s.scopes::regclass) AS q
    WHERE s.feed_id = feed.id AND s.scopes IS NOT NULL AND q.relid <> s.touched::regclass) r
  LEFT JOIN LATERAL unnest(r.used) AS u(name) ON true
  GROUP BY r.relid
$feed$;

-- Triggers for what the query reads, once all mappings are known.
CREATE FUNCTION {feed_watch}(feed {feed}) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  source {feed_source};
  missing text;
BEGIN
  SELECT string_agg(t.relid::text, ', ') INTO missing FROM {feed_tables}(feed) AS t
  WHERE NOT EXISTS (SELECT FROM {feed_source} s WHERE s.feed_id = feed.id AND s.relid = t.relid);
  IF missing IS NOT NULL THEN
    RAISE EXCEPTION 'feed %: it reads %, and no source says what a change there means; add it to sources, or use mode full',
                    feed.name, missing USING ERRCODE = 'RBF03';
  END IF;
  UPDATE {feed_source} s SET used = t.used FROM {feed_tables}(feed) AS t
  WHERE s.feed_id = feed.id AND s.relid = t.relid AND t.used IS NOT NULL;
  FOR source IN SELECT * FROM {feed_source} s WHERE s.feed_id = feed.id ORDER BY s.ord LOOP
    -- floats that differ do so as text, too
    EXECUTE format('CREATE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER '
                   'SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS %L', source.captured,
                   {feed_capture}(source, format('%s.%I', {feed_home}(), '{feed_stale_name}')));
    EXECUTE format('REVOKE ALL ON FUNCTION %s() FROM PUBLIC', source.captured);
    IF feed.state IS DISTINCT FROM 'paused' THEN
      PERFORM {feed_install}(source);
    END IF;
  END LOOP;
END $feed$;

-- Everything of the sources: triggers, functions, views, touched rows.
CREATE FUNCTION {feed_unwatch}(feed integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  source {feed_source};
BEGIN
  FOR source IN SELECT * FROM {feed_source} s WHERE s.feed_id = feed LOOP
    EXECUTE format('DROP FUNCTION IF EXISTS %s() CASCADE', source.captured);
    IF source.scopes IS NOT NULL THEN
      EXECUTE format('DROP VIEW IF EXISTS %s', source.scopes);
    END IF;
    EXECUTE format('DROP TABLE IF EXISTS %s', source.touched);
  END LOOP;
  DELETE FROM {feed_source} s WHERE s.feed_id = feed;
END $feed$;

-- What the query says of some scopes, in the snapshot of the statement that calls it (STABLE), planned for these arrays
-- (EXECUTE). One probe for each scope: OFFSET 0 keeps the equality inside, and from there it is pushed below GROUP BY,
-- DISTINCT and windows, and through joins.
CREATE FUNCTION {feed_probe}(feed {feed}) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  types text[] := ARRAY(SELECT format_type(a.atttypid, a.atttypmod) FROM unnest(feed.scope) WITH ORDINALITY AS u(name, o)
                        JOIN pg_attribute a ON a.attrelid = feed.query_view::regclass AND a.attname = u.name ORDER BY u.o);
  given text;
  named text;
BEGIN
  SELECT string_agg('$' || o, ', ' ORDER BY o) INTO given FROM generate_subscripts(types, 1) AS o;
  named := {feed_list}(feed.scope);
  EXECUTE format('CREATE FUNCTION %s(%s) RETURNS SETOF %s LANGUAGE plpgsql STABLE '
                 'SET search_path = pg_catalog, pg_temp AS %L', feed.rows_of,
                 (SELECT string_agg(t || '[]', ', ' ORDER BY o) FROM unnest(types) WITH ORDINALITY AS u(t, o)), feed.relation,
                 format('BEGIN RETURN QUERY EXECUTE %L USING %s; END',
                        format('SELECT r.* FROM unnest(%s) AS k(%s) CROSS JOIN LATERAL '
                               '(SELECT %s FROM %s q WHERE %s OFFSET 0) r',
                               given, named, {feed_list}(feed.columns, 'q.'), feed.query_view,
                               {feed_equal}(feed.query_view::regclass, feed.scope, 'q', 'k')),
                        given));
END $feed$;

-- The table that is kept: made for a new feed, and compared for one that is defined anew.
CREATE FUNCTION {feed_table}(feed {feed}, old {feed}) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  missing text;
  differs boolean;
BEGIN
  SELECT string_agg(DISTINCT u, ', ') INTO missing FROM unnest(feed.key || feed.scope) AS u WHERE u <> ALL (feed.columns);
  IF missing IS NOT NULL OR cardinality(feed.key) = 0 OR cardinality(feed.scope) = 0 THEN
    RAISE EXCEPTION 'feed %: a key is needed, and the query has no column % for it', feed.name, missing
      USING ERRCODE = 'RBF01';
  END IF;
  IF old.id IS NULL THEN
    EXECUTE format('CREATE TABLE %s AS SELECT * FROM %s WITH NO DATA', feed.relation, feed.query_view);
    BEGIN
      EXECUTE format('ALTER TABLE %s ADD PRIMARY KEY (%s)', feed.relation, {feed_list}(feed.key));
    EXCEPTION WHEN undefined_object THEN
      GET STACKED DIAGNOSTICS missing = MESSAGE_TEXT;
      RAISE EXCEPTION 'feed %: (%) cannot be a key: %', feed.name, {feed_list}(feed.key), missing USING ERRCODE = 'RBF01';
    END;
  ELSE
    SELECT array_agg((a.attname, a.atttypid, a.atttypmod) ORDER BY a.attnum)
           IS DISTINCT FROM (SELECT array_agg((b.attname, b.atttypid, b.atttypmod) ORDER BY b.attnum) FROM pg_attribute b
                             WHERE b.attrelid = feed.query_view::regclass AND b.attnum > 0 AND NOT b.attisdropped)
    INTO differs FROM pg_attribute a
    WHERE a.attrelid = feed.relation::regclass AND a.attnum > 0 AND NOT a.attisdropped;
    IF differs OR old.key <> feed.key THEN
      RAISE EXCEPTION 'feed %: its columns or its key would change, and readers know the old ones; drop it and create it '
                      'anew, or create another one', feed.name USING ERRCODE = 'RBF06';
    END IF;
    FOR missing IN SELECT u FROM unnest(old.scope) AS u WHERE u <> ALL (feed.key || feed.scope) LOOP
      EXECUTE format('ALTER TABLE %s ALTER %I DROP NOT NULL', feed.relation, missing);
    END LOOP;
  END IF;
  IF feed.scope <> feed.key[1:cardinality(feed.scope)] AND feed.scope IS DISTINCT FROM old.scope THEN
    -- a scope that is NULL is never looked for
    BEGIN
      EXECUTE (SELECT format('ALTER TABLE %s ', feed.relation) || string_agg(format('ALTER %I SET NOT NULL', u), ', ')
               FROM unnest(feed.scope) AS u);
    EXCEPTION WHEN not_null_violation THEN
      RAISE EXCEPTION 'feed %: it has rows in which its new scope (%) is NULL; drop it and create it anew', feed.name,
                      {feed_list}(feed.scope) USING ERRCODE = 'RBF01';
    END;
    EXECUTE format('CREATE INDEX ON %s (%s)', feed.relation, {feed_list}(feed.scope));
  END IF;
END $feed$;

-- The table as it is asked for, qualified: without a schema it is in ours.
CREATE FUNCTION {feed_named}(feed_name text, wanted text) RETURNS text
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  parts text[];
BEGIN
  BEGIN
    parts := parse_ident(wanted);
  EXCEPTION WHEN invalid_parameter_value THEN
    parts := '{}';
  END;
  IF cardinality(parts) = 1 THEN
    parts := parse_ident({feed_home}()) || parts;
  END IF;
  IF cardinality(parts) <> 2 OR octet_length(parts[2]) > 63 OR to_regnamespace(quote_ident(parts[1])) IS NULL THEN
    RAISE EXCEPTION 'feed %: no table can be called %; expected TABLE or SCHEMA.TABLE, each quoted as SQL has it, in a schema '
                    'that is there, and at most 63 bytes', feed_name, wanted USING ERRCODE = 'RBF20';
  END IF;
  RETURN format('%I.%I', parts[1], parts[2]);
END $feed$;

-- A definition as it is asked for, laid over the one there is.
CREATE FUNCTION {feed_wanted}(old {feed}, feed_name text, query text, key text[], topic text, options jsonb) RETURNS {feed}
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  f {feed} := old;
BEGIN
  f.name := feed_name;
  f.query := query;
  f.key := key;
  f.own_topic := coalesce(old.own_topic, (options ->> 'own_topic')::boolean, false);
  f.sources := coalesce(options ->> 'sources', '[]');
  f.scope := ARRAY(SELECT jsonb_array_elements_text(coalesce(nullif(options -> 'scope', 'null'), to_jsonb(key))));
  f.mode := coalesce(options ->> 'mode', 'auto');
  f.auto_share := coalesce((options ->> 'auto_share')::float8, 0.3);
  f.inline_rows := coalesce((options ->> 'inline_rows')::integer, 10000);
  f.inline_bytes := least(coalesce((options ->> 'inline_bytes')::integer, 1048576), 1048576);  -- an event takes no more
  f.chunk_rows := coalesce((options ->> 'chunk_rows')::integer, 1000);
  f.skip_empty := coalesce((options ->> 'skip_empty')::boolean, true);
  f.definition := md5(jsonb_build_array(query, f.key, f.scope, f.mode, f.sources)::text);
  SELECT t.id INTO f.topic_id FROM {topic} t WHERE t.name = topic AND t.semantics = 'pub_sub';
  IF f.topic_id IS NULL THEN
    RAISE EXCEPTION 'feed %: there is no pub_sub topic % for its deltas', feed_name, topic USING ERRCODE = 'RBF08';
  END IF;
  IF f.topic_id <> old.topic_id OR {feed_named}(feed_name, options ->> 'table') <> old.relation THEN
    RAISE EXCEPTION 'feed %: its deltas would go to another topic, or its rows into another table, where no reader looks; '
                    'drop it and create it anew, or create another one', feed_name USING ERRCODE = 'RBF14';
  END IF;
  IF f.mode = 'immediate' THEN
    RAISE EXCEPTION 'feed %: no statement of a writer refreshes a feed; call feed_refresh as the last statement of the '
                    'transaction that writes', feed_name USING ERRCODE = 'RBF10';
  END IF;
  RETURN f;
END $feed$;

-- The name of the kept table: as it was asked for, or made from the feed's.
CREATE FUNCTION {feed_relation}(feed_name text, wanted text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  found text := {feed_named}(feed_name, wanted);
BEGIN
  IF found IS NULL THEN
    RETURN format('%s.%I', {feed_home}(), {feed_free}({feed_home}(), 'feed_' || feed_name));
  END IF;
  IF to_regclass(found) IS NOT NULL THEN
    RAISE EXCEPTION 'feed %: table % is there already', feed_name, found USING ERRCODE = 'RBF09';
  END IF;
  RETURN found;
END $feed$;

-- Locks the tables whose triggers come or go, in the order of their numbers: two that define feeds at once do not wait for
-- each other in a circle.
CREATE FUNCTION {feed_still}(feed {feed}, path text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  named text[] := ARRAY(SELECT m ->> 'table' FROM jsonb_array_elements(feed.sources::jsonb) AS m);
  held oid[] := ARRAY(SELECT s.relid::oid FROM {feed_source} s WHERE s.feed_id = feed.id);
  mode text := CASE WHEN cardinality(held) = 0 THEN 'SHARE ROW EXCLUSIVE' ELSE 'ACCESS EXCLUSIVE' END;
  name text;
  found oid;
  tables text;
BEGIN
  FOREACH name IN ARRAY named LOOP
    PERFORM pg_catalog.set_config('search_path', path, true);
    found := pg_catalog.to_regclass(name);
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    held := array_append(held, found);
  END LOOP;
  SELECT string_agg(c.oid::regclass::text, ', ' ORDER BY c.oid) INTO tables FROM pg_class c
  WHERE c.oid = ANY (held) AND c.relkind IN ('r', 'p') AND pg_has_role(c.relowner, 'USAGE');
  IF tables IS NOT NULL THEN
    EXECUTE format('LOCK TABLE %s IN %s MODE', tables, mode);
  END IF;
END $feed$;

-- Defines a feed, or defines it anew. The same definition changes nothing; another one keeps the table, its rows and the
-- numbers of its deltas. False: nothing has changed.
CREATE FUNCTION {feed_create}(feed_name text, query text, key text[], topic text, options jsonb DEFAULT '{}',
                              path text DEFAULT current_setting('search_path')) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  old {feed};
  f {feed};
  mapping jsonb;
  ord integer := 0;
  hindrance text;
BEGIN
  SELECT * INTO old FROM {feed} g WHERE g.name = feed_name FOR UPDATE;
  f := {feed_wanted}(old, feed_name, query, key, topic, options);
  IF old.definition = f.definition AND to_regclass(old.query_view) IS NOT NULL
     AND (old.state = 'paused' OR old.fingerprint = {feed_print}(old.id)) THEN
    IF f IS NOT DISTINCT FROM old THEN
      RETURN {feed_timed}(f.id, options, false);
    END IF;
    PERFORM {feed_timed}(f.id, options, false);
    UPDATE {feed} g SET (auto_share, inline_rows, inline_bytes, chunk_rows, skip_empty)
      = ROW(f.auto_share, f.inline_rows, f.inline_bytes, f.chunk_rows, f.skip_empty) WHERE g.id = f.id;
    RETURN true;
  END IF;

  IF old.id IS NULL THEN
    INSERT INTO {feed} AS g (name, topic_id, own_topic, query, sources, key, scope, mode, auto_share, inline_rows,
                             inline_bytes, chunk_rows, skip_empty)
    VALUES (f.name, f.topic_id, f.own_topic, f.query, f.sources, f.key, f.scope, f.mode, f.auto_share, f.inline_rows,
            f.inline_bytes, f.chunk_rows, f.skip_empty)
    ON CONFLICT DO NOTHING RETURNING g.id INTO f.id;
    IF f.id IS NULL THEN    -- somebody else has just made it
      RETURN {feed_create}(feed_name, query, key, topic, options, path);
    END IF;
    f.relation := {feed_relation}(f.name, options ->> 'table');
  END IF;
  PERFORM {feed_still}(f, path);
  IF old.id IS NOT NULL THEN
    PERFORM {feed_unwatch}(old.id);
    EXECUTE format('DROP FUNCTION IF EXISTS %s', old.rows_of);
    EXECUTE format('DROP VIEW IF EXISTS %s', old.query_view);
  END IF;
  f.query_view := {feed_part}(f.id || '_query');
  f.rows_of := {feed_part}(f.id || '_rows');
  PERFORM {feed_view}(f.query_view, query, path, format('feed %s: its query', f.name));
  f.columns := ARRAY(SELECT a.attname::text FROM pg_attribute a
                     WHERE a.attrelid = f.query_view::regclass AND a.attnum > 0 ORDER BY a.attnum);
  PERFORM {feed_table}(f, old);
  PERFORM {feed_probe}(f);

  IF f.mode <> 'full' THEN
    hindrance := {feed_volatile}(f.query_view::regclass);
    IF hindrance IS NOT NULL THEN
      RAISE EXCEPTION 'feed %: what its query says changes without a change of its tables (%); use mode full', f.name,
                      hindrance USING ERRCODE = 'RBF05';
    END IF;
    FOR mapping IN SELECT * FROM jsonb_array_elements(f.sources::jsonb) LOOP
      PERFORM {feed_map}(f, ord, mapping, path);
      ord := ord + 1;
    END LOOP;
    PERFORM {feed_watch}(f);
    hindrance := {feed_remote}(f.query_view, f.scope);
    IF hindrance IS NOT NULL THEN
      RAISE EXCEPTION 'feed %: its query cannot be asked for some of (%) only: %; use mode full, or another scope', f.name,
                      {feed_list}(f.scope), hindrance USING ERRCODE = 'RBF04';
    END IF;
  END IF;
  UPDATE {feed} g
  SET (version, state, query, sources, relation, query_view, rows_of, scope, columns, reads, mode, auto_share, inline_rows,
       inline_bytes, chunk_rows, skip_empty, definition, fingerprint)
    = ROW(g.version + 1, coalesce(old.state, 'active'), f.query, f.sources, f.relation, f.query_view, f.rows_of, f.scope,
          f.columns, ARRAY(SELECT t.relid FROM {feed_tables}(f) AS t), f.mode, f.auto_share, f.inline_rows, f.inline_bytes,
          f.chunk_rows, f.skip_empty, f.definition, {feed_print}(f.id))
  WHERE g.id = f.id;
  PERFORM {feed_timed}(f.id, options, true);
  INSERT INTO {feed_stale} (feed_id, reason) VALUES (f.id, CASE WHEN old.id IS NULL THEN 'first' ELSE 'redefined' END);
  RETURN true;
END $feed$;

-- A feed by its name, locked until the caller commits.
CREATE FUNCTION {feed_locked}(feed_name text) RETURNS {feed}
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  f {feed};
BEGIN
  SELECT * INTO f FROM {feed} g WHERE g.name = feed_name FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no feed %', feed_name USING ERRCODE = 'RBF00';
  END IF;
  RETURN f;
END $feed$;

-- Without triggers writers pay nothing; the table stays as it is. False: it was paused already.
CREATE FUNCTION {feed_pause}(feed_name text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  f {feed} := {feed_locked}(feed_name);
  source {feed_source};
  one record;
BEGIN
  IF f.state = 'paused' THEN
    RETURN false;
  END IF;
  FOR source IN SELECT * FROM {feed_source} s WHERE s.feed_id = f.id LOOP
    FOR one IN SELECT g.tgname, g.tgrelid::regclass AS relation FROM pg_trigger g
                   WHERE g.tgfoid = to_regproc(source.captured) AND g.tgparentid = 0 LOOP
      EXECUTE format('DROP TRIGGER %I ON %s', one.tgname, one.relation);
    END LOOP;
    EXECUTE format('TRUNCATE %s', source.touched);
  END LOOP;
  UPDATE {feed} g SET state = 'paused' WHERE g.id = f.id;
  RETURN true;
END $feed$;

-- False: it was not paused. The next refresh is full.
CREATE FUNCTION {feed_resume}(feed_name text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  f {feed} := {feed_locked}(feed_name);
BEGIN
  IF f.state <> 'paused' THEN
    RETURN false;
  END IF;
  PERFORM {feed_install}(s) FROM {feed_source} s WHERE s.feed_id = f.id ORDER BY s.ord;
  INSERT INTO {feed_stale} (feed_id, reason) VALUES (f.id, 'resumed');
  UPDATE {feed_schedule} s SET since = clock_timestamp() WHERE s.feed_id = f.id;
  UPDATE {feed} g SET state = 'active', fingerprint = {feed_print}(f.id) WHERE g.id = f.id;
  RETURN true;
END $feed$;

-- With its table, triggers, functions and the rows of deltas that nobody has read. Refused where something of others is made
-- of the table or of its type of rows: views, references, functions, columns, children.
CREATE FUNCTION {feed_drop}(feed_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  f {feed} := {feed_locked}(feed_name);
  users text;
BEGIN
  SELECT string_agg(DISTINCT pg_describe_object(d.classid, d.objid, d.objsubid), ', ') INTO users
  FROM pg_class c JOIN pg_type t ON t.typrelid = c.oid
  JOIN pg_depend d ON (d.refclassid, d.refobjid) = ('pg_class'::regclass, c.oid)
                   OR (d.refclassid = 'pg_type'::regclass AND d.refobjid IN (t.oid, t.typarray))
  LEFT JOIN pg_class o ON d.classid = 'pg_class'::regclass AND o.oid = d.objid
  WHERE c.oid = to_regclass(f.relation) AND d.deptype = 'n'
    AND NOT (d.classid = 'pg_proc'::regclass AND d.objid = coalesce(to_regproc(f.rows_of), 0))
    AND o.relpersistence IS DISTINCT FROM 't';    -- what sessions work in
  IF users IS NOT NULL THEN
    RAISE EXCEPTION 'feed %: its table is used by %; drop that first', feed_name, users USING ERRCODE = 'RBF11';
  END IF;
  PERFORM {feed_unwatch}(f.id);
  EXECUTE format('DROP TABLE IF EXISTS %s CASCADE', f.relation);   -- with what sessions keep of its row type, and our function
  EXECUTE format('DROP VIEW IF EXISTS %s', f.query_view);
  DELETE FROM {feed_stale} s WHERE s.feed_id = f.id;
  DELETE FROM {feed_chunk} c WHERE c.feed_id = f.id;
  DELETE FROM {feed} g WHERE g.id = f.id;
END $feed$;
