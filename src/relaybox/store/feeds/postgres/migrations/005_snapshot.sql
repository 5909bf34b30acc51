-- Snapshots: the whole table as one more event of the feed, for readers that are new or have a gap.

-- Brings a feed up to date, which may write a delta, and then writes all rows of its table with the next number. The feed is
-- locked meanwhile, so that is its state between two deltas: who has the one before it knows these rows. A snapshot of
-- nothing is written, too: readers have rows to delete.
CREATE FUNCTION {feed_snapshot}(feed_name text) RETURNS {feed_refreshed}
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  f {feed};
  done {feed_refreshed} := {feed_refresh}(feed_name);
  id text := gen_random_uuid()::text;
  body bytea;
  chunks integer := 0;
BEGIN
  SELECT * INTO f FROM {feed} g WHERE g.name = feed_name;
  done.n := f.n + 1;
  done.how := 'snapshot';
  done.deleted := 0;
  EXECUTE format('SELECT count(*) FROM %s', f.relation) INTO done.inserted;
  IF done.inserted <= f.inline_rows THEN
    body := {feed_inline}(f, format('SELECT ''I'' AS op, %s AS r FROM %s m', {feed_line}(f, 'm.*'), f.relation),
                          done.inserted, ',"snapshot": true');
  END IF;
  done.claim_check := body IS NULL;
  IF done.claim_check THEN
    chunks := {feed_chop}(f, done.n, 'I', f.relation, 'm.*', 'true', chunks);
    body := convert_to(format('{"v":1,"claim_check": true,"snapshot": true,"inserted_count":%s,"deleted_count":0,'
                              '"refresh_id":"%s"}', done.inserted, id), 'UTF8');
  END IF;
  done := {feed_tell}(f, id, body, chunks, done);
  UPDATE {feed} g SET n = done.n, last_seq = done.seq WHERE g.id = f.id;
  RETURN done;
END $feed$;
