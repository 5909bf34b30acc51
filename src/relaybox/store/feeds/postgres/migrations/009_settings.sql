-- What evaluates a query or writes its rows does so alike in every session: texts of times, intervals, floats, bytes and money
-- are the same, and words are read the same. Plans are for these rows, whatever a session prefers for its own statements.

DO $feed$
DECLARE
  name text;
  value text;
BEGIN
  FOR name, value IN VALUES
    ('TimeZone', 'UTC'), ('DateStyle', 'ISO, MDY'), ('IntervalStyle', 'iso_8601'), ('extra_float_digits', '1'),
    ('bytea_output', 'hex'), ('lc_monetary', 'C'), ('xmlbinary', 'base64'),
    ('enable_seqscan', 'on'), ('enable_hashjoin', 'on'), ('enable_mergejoin', 'on'), ('enable_sort', 'on'),
    ('plan_cache_mode', 'auto')
  LOOP
    EXECUTE format('ALTER FUNCTION {feed_refresh}(text, text) SET %s = %L', name, value);
    EXECUTE format('ALTER FUNCTION {feed_snapshot}(text) SET %s = %L', name, value);
    EXECUTE format('ALTER FUNCTION {feed_drift}(text) SET %s = %L', name, value);
    EXECUTE format('ALTER FUNCTION {feed_wrong}(text) SET %s = %L', name, value);
  END LOOP;
END $feed$;
