-- A tick's number is a count above 24 random bits: ticks behind are told by the count.
CREATE OR REPLACE VIEW {group_lag} AS
SELECT t.name AS topic, g.name AS group_name, g.state, c.at AS position,
       greatest(0, coalesce(pg_sequence_last_value(format('%I.%I', s.nspname, t.relation || '_seq')::regclass), 0) - c.at)
         AS unread_at_most,
       (h.tick >> 24) - (c.tick >> 24) AS ticks_behind, c.moved_at
FROM {group} g JOIN {topic} t ON t.id = g.topic_id JOIN {head} h ON h.topic_id = t.id,
     LATERAL (SELECT min(greatest(c.seq, b.floor)) AS at, min(c.base) AS tick, max(c.moved_at) AS moved_at
              FROM {cursor} c JOIN {tick} b ON b.topic_id = t.id AND b.tick = c.base WHERE c.group_id = g.id) c,
     LATERAL (SELECT n.nspname FROM pg_class r JOIN pg_namespace n ON n.oid = r.relnamespace
              WHERE r.oid = '{topic}'::regclass) s
WHERE g.state <> 'cancelled';
