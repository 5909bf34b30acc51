{# Written by scripts/dbt_macros.py from what relaybox does itself; do not edit. #}

{# What else may be said of a feed. #}
{% macro feed_options() %}
  {{ return(['inline_rows', 'inline_bytes', 'chunk_rows', 'auto_share', 'skip_empty', 'every', 'timeout']) }}
{% endmacro %}

{# Makes a pub/sub topic. True: it was not there. #}
{% macro new_topic(at, topic) %}
  {% set topic_id = relaybox.answer('INSERT INTO ' ~ at.prefix ~ '"' ~ at.base ~ '_topic" (name, semantics, tracking, shards, block_writes, retention, zero_retention, max_retention,
                     zombie_ttl, partitions, options, created_at, updated_at)
SELECT ' ~ relaybox.literal(topic) ~ '::text, \'pub_sub\'::text, \'offset\'::text, 16::smallint, false::boolean,
       interval \'1 days 0 seconds\'::interval, interval \'1 days 0 seconds\'::interval, interval \'30 days 0 seconds\'::interval, interval \'7 days 0 seconds\'::interval,
       \'none\'::text, \'{"fetch_batch": 1000, "cleanup_batch": 10000, "spread": 1, "heartbeat_interval": 60.0, "heartbeat_timeout": 300.0}\'::text, c.now, c.now
FROM (SELECT coalesce(NULL, pg_catalog.clock_timestamp()) AS now) c
ON CONFLICT (name) DO NOTHING
RETURNING id') %}
  {% if topic_id is not none %}
    {% set taken = relaybox.answer('SELECT name FROM pg_catalog.unnest(ARRAY[\'' ~ at.prefix ~ '"' ~ at.base ~ '_log_' ~ topic_id ~ '"\', \'' ~ at.prefix ~ '"' ~ at.base ~ '_queue_' ~ topic_id ~ '"\', \'' ~ at.prefix ~ '"' ~ at.base ~ '_queue_' ~ topic_id ~ '_migration"\']) AS name WHERE pg_catalog.to_regclass(name) IS NOT NULL') %}
    {% if taken is not none %}
      {% do relaybox.refuse('topic ' ~ topic ~ ' needs the table name ' ~ taken ~ ', which something else bears; rename that table') %}
    {% endif %}
    {% do run_query('CREATE TABLE ' ~ at.prefix ~ '"' ~ at.base ~ '_log_' ~ topic_id ~ '" (
  seq            bigint       NOT NULL,
  xid            xid8         NOT NULL DEFAULT pg_catalog.pg_current_xact_id(),
  shard          smallint     NOT NULL,
  event_id       text         COLLATE "C" NOT NULL CHECK (pg_catalog.length(event_id) <= 36),
  event_type     text         NOT NULL CHECK (pg_catalog.length(event_type) <= 128),
  aggregate_type text CHECK (pg_catalog.length(aggregate_type) <= 64),
  aggregate_id   text CHECK (pg_catalog.length(aggregate_id) <= 128),
  tenant_id      text CHECK (pg_catalog.length(tenant_id) <= 64),
  content_type   text CHECK (pg_catalog.length(content_type) <= 128),
  payload        bytea        NOT NULL,
  headers        text,
  occurred_at    timestamptz  NOT NULL,
  created_at     timestamptz  NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  CONSTRAINT "' ~ at.base ~ '_log_' ~ topic_id ~ '_limits" CHECK (
    seq >= 1 AND event_id <> \'\' AND event_type <> \'\'
    AND pg_catalog.octet_length(payload) <= 1048576 AND pg_catalog.octet_length(headers) <= 50000
    AND least(occurred_at, created_at) >= \'0001-01-01 00:00+00\'
    AND greatest(occurred_at, created_at) < \'10000-01-01 00:00+00\')
) PARTITION BY RANGE (created_at)') %}
    {% do run_query('CREATE SEQUENCE ' ~ at.prefix ~ '"' ~ at.base ~ '_log_' ~ topic_id ~ '_seq" OWNED BY ' ~ at.prefix ~ '"' ~ at.base ~ '_log_' ~ topic_id ~ '".seq CACHE 1') %}
    {% do run_query('CREATE INDEX "' ~ at.base ~ '_log_' ~ topic_id ~ '_shard" ON ' ~ at.prefix ~ '"' ~ at.base ~ '_log_' ~ topic_id ~ '" (shard, seq)') %}
    {% do run_query('CREATE INDEX "' ~ at.base ~ '_log_' ~ topic_id ~ '_xid" ON ' ~ at.prefix ~ '"' ~ at.base ~ '_log_' ~ topic_id ~ '" (xid, shard, seq)') %}
    {% do run_query('CREATE TABLE ' ~ at.prefix ~ '"' ~ at.base ~ '_log_' ~ topic_id ~ '_rest" PARTITION OF ' ~ at.prefix ~ '"' ~ at.base ~ '_log_' ~ topic_id ~ '" DEFAULT') %}
    {% do run_query('WITH h AS (INSERT INTO ' ~ at.prefix ~ '"' ~ at.base ~ '_head" (topic_id, tick) VALUES (' ~ topic_id ~ '::integer, 0)),
l AS (INSERT INTO ' ~ at.prefix ~ '"' ~ at.base ~ '_latch" (topic_id) VALUES (' ~ topic_id ~ '::integer) ON CONFLICT DO NOTHING)
INSERT INTO ' ~ at.prefix ~ '"' ~ at.base ~ '_tick" (topic_id, tick, snapshot, since, late, floor, ceil, at)
VALUES (' ~ topic_id ~ '::integer, 0, \'1:1:\', \'1\', \'{}\', 0, 0, \'-infinity\')') %}
    {% do run_query('UPDATE ' ~ at.prefix ~ '"' ~ at.base ~ '_topic" SET relation = \'' ~ at.base ~ '_log_' ~ topic_id ~ '\' WHERE id = ' ~ topic_id) %}
  {% endif %}
  {{ return(topic_id is not none) }}
{% endmacro %}

{# Makes a group that begins with the earliest; `topic`: its id, shards and interval. #}
{% macro new_group_earliest(at, topic, group, ordered) %}
  {% set topic_id = topic.id %}
  {% do run_query('SELECT id FROM ' ~ at.prefix ~ '"' ~ at.base ~ '_topic" WHERE id = ' ~ topic_id ~ ' FOR NO KEY UPDATE') %}
  {% set group_id = relaybox.answer('WITH g AS (
  INSERT INTO ' ~ at.prefix ~ '"' ~ at.base ~ '_group" (topic_id, name, generation, state, ordered, bit, since, first_seq, start, start_tick,
                       max_attempts, on_exhausted, heartbeat_interval, heartbeat_timeout, heartbeat_at, state_at,
                       created_at, checked_at, alive_since)
  SELECT ' ~ topic_id ~ '::integer, ' ~ relaybox.literal(group) ~ '::text,
         1 + coalesce((SELECT pg_catalog.max(generation) FROM ' ~ at.prefix ~ '"' ~ at.base ~ '_group" WHERE topic_id = ' ~ topic_id ~ '::integer AND name = ' ~ relaybox.literal(group) ~ '::text), 0),
         \'active\', ' ~ ordered ~ ', NULL, NULL, 0, \'earliest\', 0, 10, \'block\', ' ~ topic.interval ~ ', interval \'1 days 0 seconds\',
         n.at, n.at, n.at, n.at, n.at
  FROM (SELECT coalesce(NULL, pg_catalog.clock_timestamp()) AS at) n
  RETURNING id),
l AS (INSERT INTO ' ~ at.prefix ~ '"' ~ at.base ~ '_latch" (group_id) SELECT id FROM g)
SELECT id FROM g') %}
  {% do run_query('INSERT INTO ' ~ at.prefix ~ '"' ~ at.base ~ '_cursor" (group_id, shard, base, moved_at)
SELECT ' ~ group_id ~ ', shard, 0, coalesce(NULL, pg_catalog.clock_timestamp()) FROM pg_catalog.generate_series(0, ' ~ topic.shards ~ ' - 1) AS s(shard)') %}
  {% do run_query('WITH old AS (
  DELETE FROM ' ~ at.prefix ~ '"' ~ at.base ~ '_promise" p USING ' ~ at.prefix ~ '"' ~ at.base ~ '_topic" t
  WHERE t.id = ' ~ topic_id ~ ' AND p.topic_id = t.id AND p.ended_at < coalesce(NULL, pg_catalog.clock_timestamp()) - t.max_retention)
INSERT INTO ' ~ at.prefix ~ '"' ~ at.base ~ '_promise" AS p (topic_id, tick, since)
SELECT k.topic_id, k.tick, k.snapshot FROM ' ~ at.prefix ~ '"' ~ at.base ~ '_tick" k WHERE k.topic_id = ' ~ topic_id ~ ' AND k.tick = 0
ON CONFLICT (topic_id) WHERE until IS NULL
DO UPDATE SET tick = excluded.tick, since = excluded.since WHERE p.tick > excluded.tick') %}
  {% do run_query('UPDATE ' ~ at.prefix ~ '"' ~ at.base ~ '_topic" t
SET active = s.active, required = s.required, audience = s.audience
FROM (SELECT pg_catalog.count(*) FILTER (WHERE state IN (\'active\')) AS active,
             coalesce(pg_catalog.bit_or(1::bigint << bit) FILTER (WHERE state IN (\'active\', \'paused\')), 0) AS required,
             coalesce(pg_catalog.array_agg(id ORDER BY id) FILTER (WHERE state IN (\'active\', \'paused\')), \'{}\') AS audience
      FROM ' ~ at.prefix ~ '"' ~ at.base ~ '_group" WHERE topic_id = ' ~ topic_id ~ ') s
WHERE t.id = ' ~ topic_id) %}
{% endmacro %}

{# Makes a group that begins with the latest; `topic`: its id, shards and interval. #}
{% macro new_group_latest(at, topic, group, ordered) %}
  {% set topic_id = topic.id %}
  {% do run_query('SELECT id FROM ' ~ at.prefix ~ '"' ~ at.base ~ '_topic" WHERE id = ' ~ topic_id ~ ' FOR NO KEY UPDATE') %}
  {% do run_query('SELECT 1 FROM ' ~ at.prefix ~ '"' ~ at.base ~ '_latch" WHERE topic_id = ' ~ topic_id ~ ' FOR UPDATE') %}
  {% set tick = relaybox.answer('WITH last AS MATERIALIZED (
  SELECT h.tick, t.floor, true OR CASE WHEN s.last_value - t.floor > 10000 THEN true
    ELSE EXISTS (SELECT 1 FROM ' ~ at.prefix ~ '"' ~ at.base ~ '_log_' ~ topic_id ~ '" l WHERE l.xid >= t.since ORDER BY l.xid LIMIT 1)
    OR EXISTS (
      SELECT 1 FROM pg_catalog.unnest(t.late) AS x(xid)
      CROSS JOIN LATERAL (SELECT 1 FROM ' ~ at.prefix ~ '"' ~ at.base ~ '_log_' ~ topic_id ~ '" l WHERE l.xid = x.xid LIMIT 1) l
      WHERE pg_catalog.pg_visible_in_snapshot(x.xid, pg_catalog.pg_current_snapshot()))
    END AS missed
  FROM ' ~ at.prefix ~ '"' ~ at.base ~ '_log_' ~ topic_id ~ '_seq" s
  CROSS JOIN LATERAL (SELECT tick FROM ' ~ at.prefix ~ '"' ~ at.base ~ '_head" h WHERE h.topic_id = ' ~ topic_id ~ ' ORDER BY h.tick DESC LIMIT 1) h
  CROSS JOIN LATERAL (SELECT * FROM ' ~ at.prefix ~ '"' ~ at.base ~ '_tick" t WHERE t.topic_id = ' ~ topic_id ~ ' AND t.tick = h.tick LIMIT 1) t),
ready AS MATERIALIZED (
  SELECT last.tick, CASE WHEN pg_catalog.pg_current_xact_id_if_assigned() IS NULL
                         THEN (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM ' ~ at.prefix ~ '"' ~ at.base ~ '_log_' ~ topic_id ~ '_seq")
                         ELSE last.floor END AS floor,
         CASE WHEN NOT true THEN pg_catalog.set_config(\'synchronous_commit\', \'off\', true) END
  FROM last WHERE last.missed),
first AS MATERIALIZED (
  SELECT ready.tick, ready.floor FROM ready, ' ~ at.prefix ~ '"' ~ at.base ~ '_latch" k WHERE k.topic_id = ' ~ topic_id ~ ' FOR UPDATE OF k SKIP LOCKED),
now AS MATERIALIZED (
  SELECT first.tick, first.floor, pg_catalog.pg_current_snapshot() AS snapshot, pg_catalog.pg_current_xact_id() AS ours FROM first),
gone AS (
  DELETE FROM ' ~ at.prefix ~ '"' ~ at.base ~ '_head" h USING now n WHERE h.topic_id = ' ~ topic_id ~ ' AND h.tick = n.tick RETURNING n.*),
made AS (
  INSERT INTO ' ~ at.prefix ~ '"' ~ at.base ~ '_tick" (topic_id, tick, snapshot, since, late, floor, ceil, at)
  SELECT ' ~ topic_id ~ ', ((n.tick >> 24) + 1 << 24) + pg_catalog.floor(pg_catalog.random() * (1 << 24)::float8)::bigint, n.snapshot,
         greatest(pg_catalog.pg_snapshot_xmax(n.snapshot), n.ours),
         ARRAY(SELECT pg_catalog.pg_snapshot_xip(n.snapshot)
               UNION ALL
               SELECT g::text::xid8 FROM pg_catalog.generate_series(pg_catalog.pg_snapshot_xmax(n.snapshot)::text::bigint,
                                                         n.ours::text::bigint - 1) AS g), n.floor, s.last_value, coalesce(NULL, pg_catalog.clock_timestamp())
  FROM gone n, ' ~ at.prefix ~ '"' ~ at.base ~ '_log_' ~ topic_id ~ '_seq" s
  RETURNING tick),
new AS (INSERT INTO ' ~ at.prefix ~ '"' ~ at.base ~ '_head" (topic_id, tick) SELECT ' ~ topic_id ~ '::integer, made.tick FROM made RETURNING tick)
SELECT CASE WHEN last.missed THEN (SELECT tick FROM new) ELSE last.tick END FROM last') %}
  {% set group_id = relaybox.answer('WITH g AS (
  INSERT INTO ' ~ at.prefix ~ '"' ~ at.base ~ '_group" (topic_id, name, generation, state, ordered, bit, since, first_seq, start, start_tick,
                       max_attempts, on_exhausted, heartbeat_interval, heartbeat_timeout, heartbeat_at, state_at,
                       created_at, checked_at, alive_since)
  SELECT ' ~ topic_id ~ '::integer, ' ~ relaybox.literal(group) ~ '::text,
         1 + coalesce((SELECT pg_catalog.max(generation) FROM ' ~ at.prefix ~ '"' ~ at.base ~ '_group" WHERE topic_id = ' ~ topic_id ~ '::integer AND name = ' ~ relaybox.literal(group) ~ '::text), 0),
         \'active\', ' ~ ordered ~ ', NULL, NULL, 0, \'latest\', ' ~ tick ~ ', 10, \'block\', ' ~ topic.interval ~ ', interval \'1 days 0 seconds\',
         n.at, n.at, n.at, n.at, n.at
  FROM (SELECT coalesce(NULL, pg_catalog.clock_timestamp()) AS at) n
  RETURNING id),
l AS (INSERT INTO ' ~ at.prefix ~ '"' ~ at.base ~ '_latch" (group_id) SELECT id FROM g)
SELECT id FROM g') %}
  {% do run_query('INSERT INTO ' ~ at.prefix ~ '"' ~ at.base ~ '_cursor" (group_id, shard, base, moved_at)
SELECT ' ~ group_id ~ ', shard, ' ~ tick ~ ', coalesce(NULL, pg_catalog.clock_timestamp()) FROM pg_catalog.generate_series(0, ' ~ topic.shards ~ ' - 1) AS s(shard)') %}
  {% do run_query('WITH old AS (
  DELETE FROM ' ~ at.prefix ~ '"' ~ at.base ~ '_promise" p USING ' ~ at.prefix ~ '"' ~ at.base ~ '_topic" t
  WHERE t.id = ' ~ topic_id ~ ' AND p.topic_id = t.id AND p.ended_at < coalesce(NULL, pg_catalog.clock_timestamp()) - t.max_retention)
INSERT INTO ' ~ at.prefix ~ '"' ~ at.base ~ '_promise" AS p (topic_id, tick, since)
SELECT k.topic_id, k.tick, k.snapshot FROM ' ~ at.prefix ~ '"' ~ at.base ~ '_tick" k WHERE k.topic_id = ' ~ topic_id ~ ' AND k.tick = ' ~ tick ~ '
ON CONFLICT (topic_id) WHERE until IS NULL
DO UPDATE SET tick = excluded.tick, since = excluded.since WHERE p.tick > excluded.tick') %}
  {% do run_query('UPDATE ' ~ at.prefix ~ '"' ~ at.base ~ '_topic" t
SET active = s.active, required = s.required, audience = s.audience
FROM (SELECT pg_catalog.count(*) FILTER (WHERE state IN (\'active\')) AS active,
             coalesce(pg_catalog.bit_or(1::bigint << bit) FILTER (WHERE state IN (\'active\', \'paused\')), 0) AS required,
             coalesce(pg_catalog.array_agg(id ORDER BY id) FILTER (WHERE state IN (\'active\', \'paused\')), \'{}\') AS audience
      FROM ' ~ at.prefix ~ '"' ~ at.base ~ '_group" WHERE topic_id = ' ~ topic_id ~ ') s
WHERE t.id = ' ~ topic_id) %}
{% endmacro %}

{# The line of the audit. #}
{% macro audit_line(at, actor, verb, what, reason) %}
  {{ return('INSERT INTO ' ~ at.prefix ~ '"' ~ at.name ~ '_audit" (at, actor, verb, what, changed, reason)
VALUES (coalesce(NULL, pg_catalog.clock_timestamp()), ' ~ relaybox.literal(actor) ~ ', ' ~ relaybox.literal(verb) ~ ', ' ~ relaybox.literal(what) ~ ', NULL, ' ~ relaybox.literal(reason) ~ ')') }}
{% endmacro %}

{# Makes or upgrades the tables of an inbox. #}
{% macro new_inbox(at) %}
  {% do run_query('DO $$
BEGIN
  IF pg_catalog.current_setting(\'server_version_num\')::integer >= 170000 THEN
    PERFORM pg_catalog.set_config(\'transaction_timeout\', \'0\', true);
  END IF;
  LOOP
    BEGIN
      IF \'' ~ at.namespace ~ '\' <> \'\' AND NOT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = \'' ~ at.namespace ~ '\') THEN
        EXECUTE pg_catalog.format(\'CREATE SCHEMA %I\', \'' ~ at.namespace ~ '\');
      END IF;
      IF pg_catalog.to_regclass(\'' ~ at.prefix ~ '"' ~ at.name ~ '_migration"\') IS NULL THEN
        CREATE TABLE IF NOT EXISTS ' ~ at.prefix ~ '"' ~ at.name ~ '_migration" (
  version integer PRIMARY KEY, name text NOT NULL, checksum text NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp());
      END IF;
      LOCK TABLE ' ~ at.prefix ~ '"' ~ at.name ~ '_migration" IN SHARE ROW EXCLUSIVE MODE;
      EXIT;
    EXCEPTION WHEN unique_violation OR duplicate_schema OR duplicate_table OR undefined_table THEN
    END;
  END LOOP;
END $$') %}
  {% do run_query('DO $relaybox$
DECLARE
  step text;
BEGIN
  IF NOT EXISTS (SELECT 1 FROM ' ~ at.prefix ~ '"' ~ at.name ~ '_migration" WHERE version = 1) THEN
    FOREACH step IN ARRAY ARRAY[\'CREATE SEQUENCE ' ~ at.prefix ~ '"' ~ at.name ~ '_seq"\', \'CREATE TABLE ' ~ at.prefix ~ '"' ~ at.name ~ '" (
  seq            bigint       PRIMARY KEY,    
  event_id       text         COLLATE "C" NOT NULL UNIQUE CHECK (pg_catalog.length(event_id) <= 255),
  event_type     text         NOT NULL CHECK (pg_catalog.length(event_type) <= 255),
  source         text CHECK (pg_catalog.length(source) <= 255),  
  aggregate_type text CHECK (pg_catalog.length(aggregate_type) <= 255),  
  aggregate_id   text CHECK (pg_catalog.length(aggregate_id) <= 255),  
  tenant_id      text CHECK (pg_catalog.length(tenant_id) <= 255),
  content_type   text CHECK (pg_catalog.length(content_type) <= 255),  
  payload        bytea,                       
  headers        text,                        
  occurred_at    timestamptz  NOT NULL,
  received_at    timestamptz  NOT NULL,
  CONSTRAINT "' ~ at.name ~ '_limits" CHECK (
    seq >= 1 AND event_id <> \'\'\'\' AND event_type <> \'\'\'\'
    AND pg_catalog.octet_length(payload) <= 8388608 AND pg_catalog.octet_length(headers) <= 50000
    AND least(occurred_at, received_at) >= \'\'0001-01-01 00:00+00\'\'
    AND greatest(occurred_at, received_at) < \'\'10000-01-01 00:00+00\'\')
)\', \'ALTER SEQUENCE ' ~ at.prefix ~ '"' ~ at.name ~ '_seq" OWNED BY ' ~ at.prefix ~ '"' ~ at.name ~ '".seq\', \'CREATE INDEX "' ~ at.name ~ '_drained" ON ' ~ at.prefix ~ '"' ~ at.name ~ '" (received_at) WHERE payload IS NULL\', \'CREATE TABLE ' ~ at.prefix ~ '"' ~ at.name ~ '_pending" (
  seq        bigint      PRIMARY KEY,
  due        timestamptz NOT NULL,
  key_hash   bigint      NOT NULL,            
  position   bigint,                          
  priority   smallint    NOT NULL,            
  held       boolean     NOT NULL DEFAULT false,
  replayed   boolean     NOT NULL DEFAULT false,
  attempts   integer     NOT NULL,
  strikes    integer     NOT NULL DEFAULT 0,  
  token      bigint,
  owner      integer,
  claimed_at timestamptz,
  last_error text
) WITH (
  fillfactor = 70,
  autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.2,
  autovacuum_analyze_threshold = 5000, autovacuum_vacuum_cost_delay = 0
)\', \'CREATE INDEX "' ~ at.name ~ '_pending_due" ON ' ~ at.prefix ~ '"' ~ at.name ~ '_pending" (due, seq)\', \'CREATE INDEX "' ~ at.name ~ '_pending_pos" ON ' ~ at.prefix ~ '"' ~ at.name ~ '_pending" (key_hash, position) INCLUDE (seq, replayed) WHERE position IS NOT NULL\', \'CREATE INDEX "' ~ at.name ~ '_pending_prio" ON ' ~ at.prefix ~ '"' ~ at.name ~ '_pending" (priority, due, seq) WHERE priority > 0\', \'CREATE VIEW ' ~ at.prefix ~ '"' ~ at.name ~ '_seen" AS SELECT event_id, received_at AS seen_at FROM ' ~ at.prefix ~ '"' ~ at.name ~ '"\', \'CREATE TABLE ' ~ at.prefix ~ '"' ~ at.name ~ '_done" (
  seq          bigint      PRIMARY KEY,
  processed_at timestamptz NOT NULL,
  attempts     integer     NOT NULL,
  waited       float8      NOT NULL           
)\', \'CREATE INDEX "' ~ at.name ~ '_done_at" ON ' ~ at.prefix ~ '"' ~ at.name ~ '_done" (processed_at)\', \'CREATE TABLE ' ~ at.prefix ~ '"' ~ at.name ~ '_dead" (
  seq        bigint      PRIMARY KEY,
  key_hash   bigint      NOT NULL,
  position   bigint,
  priority   smallint    NOT NULL,
  replayed   boolean     NOT NULL,
  attempts   integer     NOT NULL,
  last_error text,
  dead_at    timestamptz NOT NULL,
  told       boolean     NOT NULL DEFAULT false
)\', \'CREATE INDEX "' ~ at.name ~ '_dead_pos" ON ' ~ at.prefix ~ '"' ~ at.name ~ '_dead" (key_hash, position) WHERE position IS NOT NULL\', \'CREATE INDEX "' ~ at.name ~ '_dead_new" ON ' ~ at.prefix ~ '"' ~ at.name ~ '_dead" (seq) WHERE NOT told\', \'CREATE TABLE ' ~ at.prefix ~ '"' ~ at.name ~ '_state" (
  key_hash     bigint       NOT NULL,
  aggregate_id text         COLLATE "C" NOT NULL CHECK (pg_catalog.length(aggregate_id) <= 255),
  next         bigint       NOT NULL,
  moved_at     timestamptz  NOT NULL,
  PRIMARY KEY (key_hash, aggregate_id)
) WITH (fillfactor = 80)\', \'CREATE TABLE ' ~ at.prefix ~ '"' ~ at.name ~ '_journal" (
  event_type text         NOT NULL CHECK (pg_catalog.length(event_type) <= 255),
  pending    integer,
  processed  integer,
  dead       integer,
  waited     bigint                       
) WITH (
  autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0
)\', \'CREATE TABLE ' ~ at.prefix ~ '"' ~ at.name ~ '_totals" (
  event_type text         PRIMARY KEY CHECK (pg_catalog.length(event_type) <= 255),
  pending    bigint       NOT NULL,
  processed  bigint       NOT NULL,
  dead       bigint       NOT NULL,
  waited     bigint       NOT NULL
) WITH (fillfactor = 50)\', \'CREATE TABLE ' ~ at.prefix ~ '"' ~ at.name ~ '_alert" (
  aggregate_id text         COLLATE "C" NOT NULL CHECK (pg_catalog.length(aggregate_id) <= 255),
  first        bigint       NOT NULL,
  last         bigint       NOT NULL,
  told_at      timestamptz  NOT NULL,
  PRIMARY KEY (aggregate_id, first)
)\', \'CREATE TABLE ' ~ at.prefix ~ '"' ~ at.name ~ '_turn" (
  job text        PRIMARY KEY CHECK (pg_catalog.length(job) <= 16),
  due timestamptz NOT NULL
)\', \'INSERT INTO ' ~ at.prefix ~ '"' ~ at.name ~ '_turn" (job, due) VALUES (\'\'alerts\'\', \'\'-infinity\'\')\', \'CREATE TABLE ' ~ at.prefix ~ '"' ~ at.name ~ '_instance" (
  id         integer      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name       text         NOT NULL CHECK (pg_catalog.length(name) <= 128),
  role       text         NOT NULL CHECK (pg_catalog.length(role) <= 16),
  started_at timestamptz  NOT NULL,
  expires_at timestamptz  NOT NULL
)\', \'CREATE TABLE ' ~ at.prefix ~ '"' ~ at.name ~ '_meta" (
  name  text        PRIMARY KEY CHECK (pg_catalog.length(name) <= 64),
  value text        NOT NULL
)\', \'CREATE FUNCTION ' ~ at.prefix ~ '"' ~ at.name ~ '_mine"(aggregate_id text, worker integer, workers integer) RETURNS boolean
  LANGUAGE sql IMMUTABLE PARALLEL SAFE
  RETURN coalesce((((\'\'x\'\' || pg_catalog.substr(md5(aggregate_id), 1, 16))::bit(64)::bigint & 9223372036854775807) >> 32)
                  % workers::bigint = worker, true)\', \'CREATE VIEW ' ~ at.prefix ~ '"' ~ at.name ~ '_status" AS
SELECT m.seq, m.event_id, m.event_type, m.source, coalesce(m.aggregate_type, \'\'__GLOBAL__\'\') AS aggregate_type,
       m.aggregate_id, m.tenant_id, coalesce(m.content_type, \'\'application/json\'\') AS content_type,
       m.payload, m.headers, m.occurred_at, m.received_at,
       CASE WHEN d.seq IS NOT NULL THEN \'\'dead\'\' WHEN p.seq IS NULL THEN \'\'processed\'\' WHEN p.held THEN \'\'held\'\'
            WHEN p.owner IS NOT NULL THEN \'\'claimed\'\' WHEN p.attempts > 0 THEN \'\'retry\'\' ELSE \'\'pending\'\' END AS status,
       f.processed_at, coalesce(p.attempts, d.attempts, f.attempts) AS attempts,
       coalesce(p.last_error, d.last_error) AS last_error, d.dead_at, p.position,
       CASE WHEN p.owner IS NULL AND NOT p.held THEN p.due END AS due, i.name AS locked_by
FROM ' ~ at.prefix ~ '"' ~ at.name ~ '" m
LEFT JOIN ' ~ at.prefix ~ '"' ~ at.name ~ '_pending" p ON p.seq = m.seq
LEFT JOIN ' ~ at.prefix ~ '"' ~ at.name ~ '_dead" d ON d.seq = m.seq
LEFT JOIN ' ~ at.prefix ~ '"' ~ at.name ~ '_done" f ON f.seq = m.seq
LEFT JOIN ' ~ at.prefix ~ '"' ~ at.name ~ '_instance" i ON i.id = p.owner
WHERE m.payload IS NOT NULL\', \'CREATE VIEW ' ~ at.prefix ~ '"' ~ at.name ~ '_waiting" AS
SELECT m.seq, m.event_id, m.event_type, m.source, m.aggregate_id, m.received_at, p.position, p.priority, p.held,
       p.attempts, p.last_error, CASE WHEN p.owner IS NULL AND NOT p.held THEN p.due END AS due
FROM ' ~ at.prefix ~ '"' ~ at.name ~ '_pending" p JOIN ' ~ at.prefix ~ '"' ~ at.name ~ '" m ON m.seq = p.seq\', \'CREATE VIEW ' ~ at.prefix ~ '"' ~ at.name ~ '_letters" AS
SELECT m.seq, m.event_id, m.event_type, m.source, m.aggregate_id, m.received_at, d.position, d.attempts,
       d.last_error, d.dead_at
FROM ' ~ at.prefix ~ '"' ~ at.name ~ '_dead" d JOIN ' ~ at.prefix ~ '"' ~ at.name ~ '" m ON m.seq = d.seq\', \'CREATE VIEW ' ~ at.prefix ~ '"' ~ at.name ~ '_stats" AS
SELECT event_type, coalesce(pg_catalog.sum(pending), 0)::bigint AS pending, coalesce(pg_catalog.sum(processed), 0)::bigint AS processed,
       coalesce(pg_catalog.sum(dead), 0)::bigint AS dead, (pg_catalog.sum(waited) / 1e6 / nullif(pg_catalog.sum(processed), 0::numeric))::float8 AS avg_processing_sec
FROM (SELECT event_type, pending, processed, dead, waited FROM ' ~ at.prefix ~ '"' ~ at.name ~ '_totals"
      UNION ALL SELECT event_type, pending, processed, dead, waited FROM ' ~ at.prefix ~ '"' ~ at.name ~ '_journal") x
GROUP BY event_type
HAVING pg_catalog.sum(pending) <> 0::numeric OR pg_catalog.sum(processed) <> 0::numeric OR pg_catalog.sum(dead) <> 0::numeric\', \'CREATE VIEW ' ~ at.prefix ~ '"' ~ at.name ~ '_health" AS
SELECT pending_count, dead_letter_count, avg_processing_time_sec, oldest_pending_age_sec, throughput_per_sec, processors,
       CASE WHEN pending_count >= 100000 OR dead_letter_count >= 100 OR oldest_pending_age_sec >= 900::float8 THEN \'\'critical\'\'
            WHEN pending_count >= 1000 OR dead_letter_count >= 1 OR oldest_pending_age_sec >= 60::float8
                 OR (pending_count > 0 AND processors = 0) THEN \'\'degraded\'\'
            ELSE \'\'healthy\'\' END AS health_status
FROM (
  SELECT coalesce((SELECT pg_catalog.sum(pending) FROM ' ~ at.prefix ~ '"' ~ at.name ~ '_stats"), 0)::bigint AS pending_count,
         coalesce((SELECT pg_catalog.sum(dead) FROM ' ~ at.prefix ~ '"' ~ at.name ~ '_stats"), 0)::bigint AS dead_letter_count,
         l.waited AS avg_processing_time_sec,
         coalesce((SELECT extract(epoch FROM pg_catalog.clock_timestamp() - m.received_at)::float8
                   FROM (SELECT seq FROM ' ~ at.prefix ~ '"' ~ at.name ~ '_pending" ORDER BY seq LIMIT 1) p JOIN ' ~ at.prefix ~ '"' ~ at.name ~ '" m ON m.seq = p.seq), 0)
           AS oldest_pending_age_sec,
         l.n::float8 / greatest(extract(epoch FROM pg_catalog.clock_timestamp() - l.since)::float8, 1) AS throughput_per_sec,
         (SELECT pg_catalog.count(*) FROM ' ~ at.prefix ~ '"' ~ at.name ~ '_instance" WHERE expires_at >= pg_catalog.clock_timestamp()) AS processors
  FROM (SELECT pg_catalog.count(*) AS n, coalesce(pg_catalog.min(processed_at), pg_catalog.clock_timestamp()) AS since,
               pg_catalog.avg(least(greatest(waited, -1e12::float8), 1e12::float8)) AS waited
        FROM (SELECT processed_at, waited FROM ' ~ at.prefix ~ '"' ~ at.name ~ '_done" WHERE processed_at > pg_catalog.now() - interval \'\'1 minute\'\'
              ORDER BY processed_at DESC LIMIT 1000) x) l) h\'] LOOP
      EXECUTE step;
    END LOOP;
    INSERT INTO ' ~ at.prefix ~ '"' ~ at.name ~ '_migration" (version, name, checksum) VALUES (1, \'inbox\', \'81ff192df7f94476c79c50bba51afde7e93a2f98371efa3f6a6c2a50eb84ebfd\');
  END IF;
END $relaybox$') %}
  {% do run_query('DO $relaybox$
DECLARE
  step text;
BEGIN
  IF NOT EXISTS (SELECT 1 FROM ' ~ at.prefix ~ '"' ~ at.name ~ '_migration" WHERE version = 2) THEN
    FOREACH step IN ARRAY ARRAY[\'CREATE TABLE ' ~ at.prefix ~ '"' ~ at.name ~ '_audit" (
  id      bigint       GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
  at      timestamptz  NOT NULL,
  actor   text         NOT NULL CHECK (pg_catalog.length(actor) <= 255),
  verb    text         NOT NULL CHECK (pg_catalog.length(verb) <= 64),
  what    text         NOT NULL CHECK (pg_catalog.length(what) <= 255),
  changed bigint,                 
  reason  text         NOT NULL
)\'] LOOP
      EXECUTE step;
    END LOOP;
    INSERT INTO ' ~ at.prefix ~ '"' ~ at.name ~ '_migration" (version, name, checksum) VALUES (2, \'audit\', \'d41b33c86938323ec3ad60cd1aef7bc3deab635229d0c7ccdd15880ec0bd3c4b\');
  END IF;
END $relaybox$') %}
  {% do run_query('DO $relaybox$
DECLARE
  step text;
BEGIN
  IF NOT EXISTS (SELECT 1 FROM ' ~ at.prefix ~ '"' ~ at.name ~ '_migration" WHERE version = 3) THEN
    FOREACH step IN ARRAY ARRAY[\'ALTER TABLE ' ~ at.prefix ~ '"' ~ at.name ~ '" RENAME COLUMN source TO sender\', \'UPDATE ' ~ at.prefix ~ '"' ~ at.name ~ '" SET sender = CASE WHEN payload IS NULL THEN \'\'*\'\' ELSE \'\'\'\' END WHERE sender IS NULL\', \'ALTER TABLE ' ~ at.prefix ~ '"' ~ at.name ~ '" ALTER COLUMN sender SET DEFAULT \'\'\'\', ALTER COLUMN sender SET NOT NULL\', \'CREATE UNIQUE INDEX "' ~ at.name ~ '_identity" ON ' ~ at.prefix ~ '"' ~ at.name ~ '" (event_id, sender COLLATE "C")\', \'ALTER TABLE ' ~ at.prefix ~ '"' ~ at.name ~ '" DROP CONSTRAINT "' ~ at.name ~ '_event_id_key"\', \'CREATE OR REPLACE VIEW ' ~ at.prefix ~ '"' ~ at.name ~ '_seen" AS SELECT event_id, received_at AS seen_at, sender FROM ' ~ at.prefix ~ '"' ~ at.name ~ '"\', \'ALTER VIEW ' ~ at.prefix ~ '"' ~ at.name ~ '_status" RENAME COLUMN source TO sender\', \'ALTER VIEW ' ~ at.prefix ~ '"' ~ at.name ~ '_waiting" RENAME COLUMN source TO sender\', \'ALTER VIEW ' ~ at.prefix ~ '"' ~ at.name ~ '_letters" RENAME COLUMN source TO sender\', \'INSERT INTO ' ~ at.prefix ~ '"' ~ at.name ~ '_meta" (name, value) SELECT \'\'former\'\', \'\'true\'\' WHERE EXISTS (SELECT 1 FROM ' ~ at.prefix ~ '"' ~ at.name ~ '_seen" WHERE sender = \'\'*\'\')\'] LOOP
      EXECUTE step;
    END LOOP;
    INSERT INTO ' ~ at.prefix ~ '"' ~ at.name ~ '_migration" (version, name, checksum) VALUES (3, \'sender\', \'a10bc5bce4124adb4316ca13364792a00c3468679774fb065a21c1777a0f5cf4\');
  END IF;
END $relaybox$') %}
{% endmacro %}

{# How many the tables of an inbox have. #}
{% macro inbox_migrations() %}
  {{ return(3) }}
{% endmacro %}

{# Gives a new inbox an order; `order`: as it is kept. #}
{% macro new_order(at, order) %}
  {% do run_query('LOCK TABLE ' ~ at.prefix ~ '"' ~ at.name ~ '_meta" IN SHARE ROW EXCLUSIVE MODE') %}
  {% set newest = relaybox.answer('SELECT coalesce(pg_catalog.max(seq), 0), coalesce(NULL, pg_catalog.clock_timestamp()) FROM ' ~ at.prefix ~ '"' ~ at.name ~ '"') %}
  {% do run_query('DELETE FROM ' ~ at.prefix ~ '"' ~ at.name ~ '_meta" WHERE name = \'history\'') %}
  {% do run_query('INSERT INTO ' ~ at.prefix ~ '"' ~ at.name ~ '_meta" (name, value) VALUES (\'history\', \'{"until": ' ~ newest ~ ', "at": "\' || to_char(clock_timestamp() AT TIME ZONE \'UTC\', \'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"\') || \'", "older": true}\')') %}
  {% do run_query('DELETE FROM ' ~ at.prefix ~ '"' ~ at.name ~ '_meta" WHERE name = \'order\'') %}
  {% do run_query('INSERT INTO ' ~ at.prefix ~ '"' ~ at.name ~ '_meta" (name, value) VALUES (\'order\', ' ~ relaybox.literal(order) ~ ')') %}
{% endmacro %}
