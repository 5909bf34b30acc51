-- Hand-off: a group commits the event of a claim check at once, and another job reads the rows. They wait for its word.

-- Groups that do so.
CREATE TABLE {feed_hand_off} (
  feed_id  integer     NOT NULL REFERENCES {feed} (id) ON DELETE CASCADE,
  group_id integer     NOT NULL REFERENCES {group} (id) ON DELETE CASCADE,
  at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (feed_id, group_id)
);

-- Claim checks whose rows such a group has read, or is not to have.
CREATE TABLE {feed_consumed} (
  feed_id  integer     NOT NULL,
  n        bigint      NOT NULL,
  group_id integer     NOT NULL,
  at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (feed_id, n, group_id),
  FOREIGN KEY (feed_id, n) REFERENCES {feed_delta} (feed_id, n) ON DELETE CASCADE,
  FOREIGN KEY (feed_id, group_id) REFERENCES {feed_hand_off} (feed_id, group_id) ON DELETE CASCADE
);

-- The rows of a claim check were read for a group. False: nobody waited for that word. A feed that was made anew counts
-- from 1 again: `epoch` says which one is meant.
CREATE FUNCTION {feed_rows_consumed}(feed_name text, delta bigint, group_name text, made uuid DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  f {feed};
  reader integer;
BEGIN
  SELECT * INTO f FROM {feed} k WHERE k.name = feed_name;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no feed %', feed_name USING ERRCODE = 'RBF00';
  END IF;
  IF made <> f.epoch THEN
    RETURN false;
  END IF;
  IF delta NOT BETWEEN 1 AND f.n THEN
    RAISE EXCEPTION 'feed % has not written a delta %: the last one is %', feed_name, delta, f.n USING ERRCODE = 'RBF16';
  END IF;
  SELECT h.group_id INTO reader FROM {feed_hand_off} h JOIN {group} g ON g.id = h.group_id
  WHERE h.feed_id = f.id AND g.name = group_name ORDER BY g.generation DESC LIMIT 1;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'feed %: no rows wait for the word of a group %; tell of it with feeds.hand_off first', feed_name,
                    group_name USING ERRCODE = 'RBF17';
  END IF;
  INSERT INTO {feed_consumed} (feed_id, n, group_id)
  SELECT d.feed_id, d.n, reader FROM {feed_delta} d WHERE d.feed_id = f.id AND d.n = delta
  ON CONFLICT DO NOTHING;
  RETURN FOUND;
EXCEPTION
  WHEN foreign_key_violation THEN    -- it went meanwhile
    RETURN false;
END $feed$;

-- Groups that left a claim check behind, or will, and whose jobs have not said that they read its rows.
CREATE FUNCTION {feed_awaited}(delta {feed_delta}) RETURNS SETOF text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $feed$
  SELECT g.name FROM {feed_hand_off} h JOIN {group} g ON g.id = h.group_id
  WHERE h.feed_id = delta.feed_id AND g.state IN ('active', 'paused')
    AND NOT EXISTS (SELECT FROM {feed_consumed} c
                    WHERE c.feed_id = delta.feed_id AND c.n = delta.n AND c.group_id = h.group_id)
$feed$;

-- Whether somebody besides the log keeps the rows of a delta: a group that has parked it to try it again, or a job. The word
-- of jobs is awaited up to the topic's max_retention.
CREATE FUNCTION {feed_held}(delta {feed_delta}, topic {topic}) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $feed$
  SELECT EXISTS (SELECT FROM {parked} p JOIN {group} g ON g.id = p.group_id
                 WHERE g.topic_id = topic.id AND g.state <> 'cancelled' AND p.seq = delta.seq)
      OR (delta.at > clock_timestamp() - topic.max_retention AND EXISTS (SELECT FROM {feed_awaited}(delta)))
$feed$;

-- Deletes the rows of deltas that nobody is to have any more: their events have left the log, which keeps them for every
-- group that is active or paused, and nobody else holds them. `lost`: groups whose jobs still had to read, one for each delta.
CREATE FUNCTION {feed_sweep}(topic integer, most integer, OUT gone integer, OUT lost text[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $feed$
DECLARE
  t {topic};
  delta {feed_delta};
BEGIN
  gone := 0;
  lost := '{}';
  SELECT * INTO t FROM {topic} k WHERE k.id = topic;
  FOR delta IN EXECUTE format(
    'SELECT d.* FROM %1$s.%2$I d WHERE d.feed_id = ANY ($1) AND NOT %1$s.%3$I(d, $2) '
    'AND NOT EXISTS (SELECT FROM %1$s.%4$I l WHERE l.shard = d.shard AND l.seq = d.seq) ORDER BY d.seq LIMIT $3',
    {feed_home}(), '{feed_delta_name}', '{feed_held_name}', t.relation)
    USING ARRAY(SELECT f.id FROM {feed} f WHERE f.topic_id = topic), t, most
  LOOP
    lost := lost || ARRAY(SELECT {feed_awaited}(delta));
    DELETE FROM {feed_chunk} c WHERE c.feed_id = delta.feed_id AND c.n = delta.n;
    DELETE FROM {feed_delta} d WHERE d.feed_id = delta.feed_id AND d.n = delta.n;
    gone := gone + 1;
  END LOOP;
END $feed$;
