-- Who changed what a feed is made of. Every function here looks into pg_catalog only and names our own tables by their
-- schema: whatever strangers put into a search_path is not called.

-- Columns as a list.
CREATE FUNCTION {feed_list}(names text[], prefix text DEFAULT '') RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $feed$
  SELECT string_agg(prefix || quote_ident(u.name), ', ' ORDER BY u.o) FROM unnest(names) WITH ORDINALITY AS u(name, o)
$feed$;

-- a.x = b.x AND …, by the operators of the columns' own types: that of an extension is not in pg_catalog.
CREATE FUNCTION {feed_equal}(relation regclass, names text[], a text, b text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $feed$
  SELECT string_agg(format('%s.%I %s %s.%I', a, c.attname, coalesce(e.operator, 'OPERATOR(pg_catalog.=)'), b, c.attname),
                    ' AND ' ORDER BY u.o)
  FROM unnest(names) WITH ORDINALITY AS u(name, o)
  JOIN pg_attribute c ON c.attrelid = relation AND c.attname = u.name
  LEFT JOIN LATERAL (
    SELECT format('OPERATOR(%I.%s)', s.nspname, o.oprname) AS operator
    FROM pg_type t JOIN pg_opclass k ON k.opcintype = coalesce(nullif(t.typbasetype, 0), t.oid) AND k.opcdefault
    JOIN pg_am m ON m.oid = k.opcmethod AND m.amname = 'btree'
    JOIN pg_amop p ON p.amopfamily = k.opcfamily AND p.amoplefttype = k.opcintype
                      AND p.amoprighttype = k.opcintype AND p.amopstrategy = 3
    JOIN pg_operator o ON o.oid = p.amopopr JOIN pg_namespace s ON s.oid = o.oprnamespace
    WHERE t.oid = c.atttypid) e ON true
$feed$;

-- Whether `=` says all of a type: no two values that differ look equal to it.
CREATE FUNCTION {feed_exact}(type oid) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $feed$
  SELECT type = ANY (ARRAY['int2', 'int4', 'int8', 'bool', 'date', 'timestamp', 'timestamptz', 'uuid', 'bytea',
                           'oid']::regtype[]::oid[])
$feed$;

-- A view, and the views it reads.
CREATE FUNCTION {feed_views}(view regclass) RETURNS SETOF oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $feed$
  WITH RECURSIVE w AS (
    SELECT view::oid AS v
    UNION
    SELECT d.refobjid FROM w JOIN pg_rewrite r ON r.ev_class = w.v
    JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid AND d.refclassid = 'pg_class'::regclass
    JOIN pg_class c ON c.oid = d.refobjid AND c.relkind = 'v'
    WHERE d.refobjid <> w.v)
  SELECT v FROM w
$feed$;

-- The tables a view reads, and the columns it uses of each. A whole row (o.*::text) leaves no trace in pg_depend: then all.
-- So too for a virtual generated column: triggers cannot see it, but all that it is made of.
CREATE FUNCTION {feed_reads}(view regclass) RETURNS TABLE (relid regclass, used text[])
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $feed$
  WITH rule AS MATERIALIZED (
    SELECT r.oid, r.ev_action::text ~ '[:]varattno 0 ' AS whole
    FROM {feed_views}(view) AS v JOIN pg_rewrite r ON r.ev_class = v)
  SELECT d.refobjid::regclass, coalesce(array_agg(DISTINCT a.attname::text) FILTER (WHERE a.attname IS NOT NULL), '{}')
  FROM rule r JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
                                  AND d.refclassid = 'pg_class'::regclass
  JOIN pg_class c ON c.oid = d.refobjid AND c.relkind IN ('r', 'p', 'f', 'm')
  LEFT JOIN pg_attribute g ON g.attrelid = d.refobjid AND g.attnum = d.refobjsubid
  LEFT JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> 'v'
                              AND (a.attnum = d.refobjsubid OR g.attgenerated = 'v' OR (SELECT bool_or(whole) FROM rule))
  GROUP BY d.refobjid
$feed$;

-- A table with its partitions or children: statement triggers fire for the table that a statement names, so each has them.
CREATE FUNCTION {feed_tree}(root regclass) RETURNS SETOF regclass
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $feed$
  WITH RECURSIVE w AS (
    SELECT root::oid AS r UNION SELECT i.inhrelid FROM w JOIN pg_inherits i ON i.inhparent = w.r)
  SELECT r::regclass FROM w
$feed$;

-- Whether a subscription of logical replication fills a table, or a part of it.
CREATE FUNCTION {feed_subscribed}(root regclass) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $feed$
  SELECT EXISTS (SELECT FROM {feed_tree}(root) AS r JOIN pg_subscription_rel s ON s.srrelid = r)
$feed$;

-- Is another one when a trigger of ours was dropped, disabled or enabled again (xmin), a partition came or went, or a
-- subscription began to fill a table whose triggers do not hear of that. While a trigger is missing or disabled it is another
-- one each time: no feed takes that for what it left. Partitions have clones of triggers for each row.
CREATE FUNCTION {feed_print}(feed integer) RETURNS text
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $feed$
  WITH t AS (
    SELECT s.ord, t.r, g.oid, g.xmin, g.tgenabled, g.tgparentid <> 0 OR g.tgenabled = 'A' AS well,
           NOT s.by_row AND EXISTS (SELECT FROM pg_subscription_rel u WHERE u.srrelid = t.r) AS subscribed
    FROM {feed_source} s CROSS JOIN LATERAL (SELECT r::oid AS r FROM {feed_tree}(s.relid) AS r) t
    LEFT JOIN pg_trigger g ON g.tgrelid = t.r AND g.tgfoid = to_regproc(s.captured)
    WHERE s.feed_id = feed)
  SELECT CASE WHEN EXISTS (SELECT FROM t GROUP BY t.ord, t.r HAVING NOT (count(t.oid) = 4 AND bool_and(t.well)))
    THEN gen_random_uuid()::text
    ELSE coalesce((SELECT md5(string_agg(format('%s %s %s %s %s', t.r, t.oid, t.xmin, t.tgenabled, t.subscribed), ','
                                         ORDER BY t.r, t.oid)) FROM t), '') END
$feed$;

-- One trigger, enabled also where session_replication_role is replica.
CREATE FUNCTION {feed_trigger}(source {feed_source}, relation regclass, event text, clause text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  -- two outboxes of one name, in two schemas, may read one table
  name text := format('relaybox_feed_%s_%s_%s_%s', substr(md5(source.captured), 1, 7), source.feed_id, source.ord,
                      lower(event));
  enabled "char";
BEGIN
  SELECT g.tgenabled INTO enabled FROM pg_trigger g WHERE g.tgrelid = relation AND g.tgname = name;
  IF enabled IS NULL THEN
    EXECUTE format('CREATE TRIGGER %I AFTER %s ON %s %s EXECUTE FUNCTION %s()', name, event, relation, clause,
                   source.captured);
  END IF;
  IF enabled IS DISTINCT FROM 'A' THEN
    EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', relation, name);
  END IF;
END $feed$;

-- The triggers of a source, where they are missing. Tables that a subscription fills need those for each row: its apply
-- worker fires no statement triggers for INSERT. Partitions inherit them, other children do not. Refused is what changes
-- without a trigger: foreign tables, and what is not logged, which is empty after a crash.
CREATE FUNCTION {feed_install}(source {feed_source}) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  feed text := (SELECT f.name FROM {feed} f WHERE f.id = source.feed_id);
  used text[] := ARRAY(SELECT DISTINCT u FROM unnest(source.used || source.mapped) AS u);
  part record;
BEGIN
  IF NOT source.by_row AND {feed_subscribed}(source.relid) THEN
    RAISE EXCEPTION 'feed %: a subscription fills %, and fires no statement triggers; create the feed with by_row for it',
                    feed, source.relid USING ERRCODE = 'RBF18';
  END IF;
  FOR part IN SELECT r AS relation, c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AS tells,
                     c.relispartition AND r <> source.relid AS inherits
              FROM {feed_tree}(source.relid) AS r JOIN pg_class c ON c.oid = r LOOP
    IF NOT part.tells THEN
      RAISE EXCEPTION 'feed %: % is foreign or unlogged, and changes without a trigger that tells of it; use mode full',
                      feed, part.relation USING ERRCODE = 'RBF04';
    END IF;
    IF NOT source.by_row THEN
      PERFORM {feed_trigger}(source, part.relation, 'INSERT', 'REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT');
      PERFORM {feed_trigger}(source, part.relation, 'DELETE', 'REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT');
      PERFORM {feed_trigger}(source, part.relation, 'UPDATE',
                             'REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT');
    ELSIF NOT part.inherits THEN
      PERFORM {feed_trigger}(source, part.relation, 'INSERT', 'FOR EACH ROW');
      PERFORM {feed_trigger}(source, part.relation, 'DELETE', 'FOR EACH ROW');
      PERFORM {feed_trigger}(source, part.relation, 'UPDATE', format(
        'FOR EACH ROW WHEN (record_image_ne(ROW(%s), ROW(%s)))', {feed_list}(used, 'OLD.'), {feed_list}(used, 'NEW.')));
    END IF;
    PERFORM {feed_trigger}(source, part.relation, 'TRUNCATE', 'FOR EACH STATEMENT');
  END LOOP;
END $feed$;

-- What the triggers of a source do: they store the changed rows' own columns, old and new. What those mean is asked at the
-- refresh, in its snapshot: a trigger would ask before others have committed. A column may be called as a variable of
-- PL/pgSQL is.
CREATE FUNCTION {feed_capture}(source {feed_source}, stale text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  mapped text := {feed_list}(source.mapped);
  named text := (SELECT string_agg('m' || o, ', ' ORDER BY o) FROM generate_subscripts(source.mapped, 1) AS o);
  other text;    -- what else decides whether an update changed anything, by image where equal values can look different
  marked text := format('INSERT INTO %s (feed_id, reason) VALUES (%s, %L);', stale, source.feed_id,
                        'TRUNCATE of ' || source.relid);
BEGIN
  IF source.by_row THEN
    RETURN format($body$BEGIN
      IF TG_OP = 'TRUNCATE' THEN %1$s RETURN NULL; END IF;
      IF TG_OP <> 'INSERT' THEN INSERT INTO %2$s VALUES (%3$s); END IF;
      IF TG_OP <> 'DELETE' THEN INSERT INTO %2$s VALUES (%4$s); END IF;
      RETURN NULL; END $body$, marked, source.touched, {feed_list}(source.mapped, 'OLD.'), {feed_list}(source.mapped, 'NEW.'));
  END IF;
  SELECT {feed_list}(array_agg(a.attname::text ORDER BY a.attnum)) INTO other FROM pg_attribute a
  WHERE a.attrelid = source.relid AND a.attname = ANY (source.used || source.mapped)
    AND NOT (a.attname = ANY (source.mapped) AND {feed_exact}(a.atttypid));
  RETURN format($body$#variable_conflict use_column
    BEGIN
    IF TG_OP = 'INSERT' THEN INSERT INTO %2$s SELECT DISTINCT %3$s FROM new_rows;
    ELSIF TG_OP = 'DELETE' THEN INSERT INTO %2$s SELECT DISTINCT %3$s FROM old_rows;
    ELSIF TG_OP = 'UPDATE' THEN
      INSERT INTO %2$s SELECT DISTINCT %5$s FROM (
        SELECT %3$s, ROW(%4$s)::text, 1 FROM old_rows UNION ALL SELECT %3$s, ROW(%4$s)::text, -1 FROM new_rows
      ) AS u(%5$s, image, sign) GROUP BY %5$s, image HAVING sum(sign) <> 0;
    ELSE %1$s END IF;
    RETURN NULL; END $body$, marked, source.touched, mapped, coalesce(other, ''), named);
END $feed$;
