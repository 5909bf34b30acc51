-- Topics: a catalog, and what readers need to know of their place. Each topic's events are in a table of their own (see
-- sql/log.sql), made when the topic is configured.

CREATE TABLE {topic} (
  id             integer      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name           text         COLLATE "C" NOT NULL CHECK (length(name) <= 255),
  semantics      text         NOT NULL CHECK (semantics IN ('queue', 'pub_sub')),
  tracking       text         NOT NULL CHECK (tracking IN ('rows', 'offset', 'bitmap', 'acks')),
  version        integer      NOT NULL DEFAULT 1,    -- raised by whatever changes how one writes; writers say theirs
  shards         smallint     NOT NULL CHECK (shards > 0),
  block_writes   boolean      NOT NULL DEFAULT false,
  active         integer      NOT NULL DEFAULT 0,    -- groups that are active
  required       bigint       NOT NULL DEFAULT 0,    -- bits of the groups that are active or paused
  audience       integer[]    NOT NULL DEFAULT '{}', -- ids of the same groups
  retention      interval     NOT NULL,
  zero_retention interval     NOT NULL,
  max_retention  interval     NOT NULL,
  zombie_ttl     interval     NOT NULL,
  partitions     text         NOT NULL CHECK (partitions IN ('none', 'day', 'month')),
  relation       text         NOT NULL DEFAULT '' CHECK (length(relation) <= 63),  -- the table its events are in
  options        text         NOT NULL,              -- JSON: what only clients read
  moving         text,                               -- JSON: a change of the tracking that is under way
  created_at     timestamptz  NOT NULL,
  updated_at     timestamptz  NOT NULL,
  CONSTRAINT "{topic_name}_name_key" UNIQUE (name)
);

-- A tick is a moment of a topic's log: `snapshot` is what had been committed then. `late` are the transactions that may
-- have been under way; all others it has not seen are `since` or later, and their events have numbers above `floor`. No
-- event that it has seen has one above `ceil`. Tick 0 has seen nothing.
CREATE TABLE {tick} (
  topic_id integer     NOT NULL,
  tick     bigint      NOT NULL,
  snapshot pg_snapshot NOT NULL,
  since    xid8        NOT NULL,
  late     xid8[]      NOT NULL,
  floor    bigint      NOT NULL,
  ceil     bigint      NOT NULL,
  at       timestamptz NOT NULL,
  PRIMARY KEY (topic_id, tick)
);

-- The newest tick of each topic: one row. It is not updated but replaced, and found from the end of its index: while some
-- transaction stays open, old versions cannot be cleaned up, and a reader that comes through them is slower with each.
CREATE TABLE {head} (
  topic_id integer NOT NULL,
  tick     bigint  NOT NULL,
  PRIMARY KEY (topic_id, tick)
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE {group} (
  id                  integer      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  topic_id            integer      NOT NULL REFERENCES {topic} (id) ON DELETE RESTRICT,
  name                text         COLLATE "C" NOT NULL CHECK (length(name) <= 255),
  generation          integer      NOT NULL,
  state               text         NOT NULL CHECK (state IN ('active', 'paused', 'dead', 'cancelled')),
  ordered             boolean      NOT NULL,
  bit                 smallint     CHECK (bit BETWEEN 0 AND 63),
  since               timestamptz,               -- events created before it are passed over
  first_seq           bigint       NOT NULL DEFAULT 0, -- and those with lower numbers
  start               text         NOT NULL,     -- where it began, in words
  start_tick          bigint       NOT NULL,
  max_attempts        integer      NOT NULL,
  on_exhausted        text         NOT NULL CHECK (on_exhausted IN ('block', 'park', 'skip')),
  heartbeat_interval  interval     NOT NULL,
  heartbeat_timeout   interval     NOT NULL,
  heartbeat_at        timestamptz  NOT NULL,
  failures            integer      NOT NULL DEFAULT 0, -- windows one after the other without a sign, or with restarts and
                                                       -- no progress
  stalled             boolean      NOT NULL DEFAULT false, -- dead for want of progress: an operator must resurrect it
  joins               bigint       NOT NULL DEFAULT 0, -- members that ever joined
  processed           bigint       NOT NULL DEFAULT 0, -- by members that are gone
  failed              bigint       NOT NULL DEFAULT 0,
  filtered            bigint       NOT NULL DEFAULT 0,
  busy_ms             bigint       NOT NULL DEFAULT 0,
  checked_at          timestamptz  NOT NULL,           -- when the last window ended, and what was counted then
  checked_joins       bigint       NOT NULL DEFAULT 0,
  checked_done        bigint       NOT NULL DEFAULT 0,
  reason              text,                            -- why it is in this state
  state_at            timestamptz  NOT NULL,
  created_at          timestamptz  NOT NULL,
  backfill_state      text         NOT NULL DEFAULT 'not_started'
    CHECK (backfill_state IN ('not_started', 'in_progress', 'completed', 'cancelled', 'failed')),
  backfill_seq        bigint       NOT NULL DEFAULT 0,  -- the next event to look at
  backfill_until      bigint       NOT NULL DEFAULT 0,
  backfill_total      bigint       NOT NULL DEFAULT 0,
  backfill_done       bigint       NOT NULL DEFAULT 0,
  backfill_limited    boolean      NOT NULL DEFAULT false,  -- there was more than its limit
  backfill_rate       float8       NOT NULL DEFAULT 0,      -- events per second, lately
  backfill_token      bigint,
  backfill_lease      timestamptz,
  backfill_started_at timestamptz,
  backfill_ended_at   timestamptz,
  backfill_error      text,
  alive_since         timestamptz  NOT NULL DEFAULT clock_timestamp(),  -- it came back, or began
  lost                bigint       NOT NULL DEFAULT 0   -- events that were deleted before it had them
);

CREATE UNIQUE INDEX "{group_name}_live" ON {group} (topic_id, name) WHERE state <> 'cancelled';

-- Events that some group was to have: those that `since` had not seen and `until` had. While a topic has a group that is
-- not cancelled, one of its promises has no end. `tick` is the tick whose snapshot `since` is; the tick itself may go.
CREATE TABLE {promise} (
  topic_id integer     NOT NULL REFERENCES {topic} (id) ON DELETE CASCADE,
  tick     bigint      NOT NULL,
  since    pg_snapshot NOT NULL,
  until    pg_snapshot,
  ended_at timestamptz
);

CREATE UNIQUE INDEX "{promise_name}_open" ON {promise} (topic_id) WHERE until IS NULL;

-- Where a group stands in one shard. Events that tick `base` had seen are behind it. Of those that `target` has seen and
-- `base` had not, numbers up to `seq` are taken. Without a target the group is at the end of `base`. One row per shard;
-- where it moves on it is replaced by one with the next `version`, for the reason given at {head}.
CREATE TABLE {cursor} (
  group_id integer     NOT NULL REFERENCES {group} (id) ON DELETE CASCADE,
  shard    smallint    NOT NULL,
  base     bigint      NOT NULL,
  target   bigint,
  seq      bigint      NOT NULL DEFAULT 0,
  epoch    integer     NOT NULL DEFAULT 1,   -- raised by a seek: what was taken before counts no more
  moved_at timestamptz NOT NULL,
  version  bigint      NOT NULL DEFAULT 1,
  low      bigint      NOT NULL DEFAULT 1,   -- no range of this shard has a lower `n`
  PRIMARY KEY (group_id, shard, version)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);

-- What a member has taken and not finished: numbers above `after` up to `upto`, between two ticks, in one shard. The token
-- fences whatever the member says of it. `finished` are those of them that are done already, when one gave the rest back.
CREATE TABLE {range} (
  token    bigint      PRIMARY KEY,
  group_id integer     NOT NULL REFERENCES {group} (id) ON DELETE CASCADE,
  shard    smallint    NOT NULL,
  n        bigint      NOT NULL,               -- in a shard, by order: the version of the cursor that passed it
  base     bigint      NOT NULL,
  target   bigint      NOT NULL,
  after    bigint      NOT NULL,
  upto     bigint      NOT NULL,
  owner    integer     NOT NULL,               -- a member; 0 is nobody
  until    timestamptz NOT NULL,
  attempts integer     NOT NULL,
  events   integer     NOT NULL,
  finished bigint[]
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);

CREATE INDEX "{range_name}_group" ON {range} (group_id, shard, n);

-- Events that left the log's order for a group: to be tried again, held behind one of their key, or given up. Copies, so
-- that the log may go.
CREATE TABLE {parked} (
  group_id       integer      NOT NULL REFERENCES {group} (id) ON DELETE CASCADE,
  seq            bigint       NOT NULL,
  shard          smallint     NOT NULL,
  key_hash       bigint       NOT NULL,
  state          text         NOT NULL CHECK (state IN ('retry', 'held', 'dead')),
  attempts       integer      NOT NULL,
  due            timestamptz  NOT NULL,
  token          bigint,
  owner          integer,
  until          timestamptz,
  last_error     text,
  parked_at      timestamptz  NOT NULL,
  dead_at        timestamptz,
  event_id       text         COLLATE "C" NOT NULL CHECK (length(event_id) <= 36),
  event_type     text         NOT NULL CHECK (length(event_type) <= 128),
  aggregate_type text CHECK (length(aggregate_type) <= 64),
  aggregate_id   text CHECK (length(aggregate_id) <= 128),
  tenant_id      text CHECK (length(tenant_id) <= 64),
  content_type   text CHECK (length(content_type) <= 128),
  payload        bytea        NOT NULL,
  headers        text,
  occurred_at    timestamptz  NOT NULL,
  created_at     timestamptz  NOT NULL,
  PRIMARY KEY (group_id, seq),
  CONSTRAINT "{parked_name}_limits" CHECK (
    seq >= 1 AND attempts >= 0 AND octet_length(payload) <= 1048576 AND octet_length(headers) <= 50000
    AND due >= '0001-01-01 00:00+00' AND due < '10000-01-01 00:00+00'
    AND occurred_at >= '0001-01-01 00:00+00' AND occurred_at < '10000-01-01 00:00+00'
    AND created_at >= '0001-01-01 00:00+00' AND created_at < '10000-01-01 00:00+00')
);

CREATE INDEX "{parked_name}_key" ON {parked} (group_id, key_hash, seq);
CREATE INDEX "{parked_name}_due" ON {parked} (group_id, due) WHERE state = 'retry';
CREATE INDEX "{parked_name}_claimed" ON {parked} (group_id, token) WHERE token IS NOT NULL;
CREATE INDEX "{parked_name}_head" ON {parked} (group_id, shard, key_hash) WHERE state = 'retry';
CREATE INDEX "{parked_name}_dead" ON {parked} (group_id, shard, key_hash) WHERE state = 'dead';

-- One running consumer of a group: a process, or a pull consumer.
CREATE TABLE {member} (
  id         integer      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  group_id   integer      NOT NULL REFERENCES {group} (id) ON DELETE CASCADE,
  name       text         NOT NULL CHECK (length(name) <= 255),
  started_at timestamptz  NOT NULL,
  seen_at    timestamptz  NOT NULL,
  expires_at timestamptz  NOT NULL,
  processed  bigint       NOT NULL DEFAULT 0,
  failed     bigint       NOT NULL DEFAULT 0,
  filtered   bigint       NOT NULL DEFAULT 0,
  busy_ms    bigint       NOT NULL DEFAULT 0,
  unhealthy  boolean      NOT NULL DEFAULT false     -- somebody has been told
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);

CREATE INDEX "{member_name}_group" ON {member} (group_id);

-- Who may do a job that only one should do at a time.
CREATE TABLE {term} (
  job   text         PRIMARY KEY CHECK (length(job) <= 64),
  owner text         NOT NULL CHECK (length(owner) <= 128),
  term  bigint       NOT NULL,
  until timestamptz  NOT NULL
);

-- Rows that are locked and never changed: of a topic by who makes its next tick, of a group by who changes the queues of
-- its parked events. Rows and not advisory locks, which any role of the database could hold.
CREATE TABLE {latch} (
  topic_id integer UNIQUE REFERENCES {topic} (id) ON DELETE CASCADE,
  group_id integer UNIQUE REFERENCES {group} (id) ON DELETE CASCADE
);

-- Which cluster the transaction numbers in the logs belong to. After a restore into another one they mean nothing.
CREATE TABLE {incarnation} (
  only_one          boolean PRIMARY KEY DEFAULT true CHECK (only_one),
  system_identifier bigint  NOT NULL,
  timeline          integer NOT NULL,
  noted_at          timestamptz NOT NULL
);

INSERT INTO {incarnation} (system_identifier, timeline, noted_at)
SELECT s.system_identifier, c.timeline_id, clock_timestamp() FROM pg_control_system() s, pg_control_checkpoint() c;

-- Conditions that somebody should look at, from their beginning to their end.
CREATE TABLE {alert} (
  name       text         NOT NULL CHECK (length(name) <= 64),
  topic      text         COLLATE "C" NOT NULL DEFAULT '' CHECK (length(topic) <= 255),
  group_name text         COLLATE "C" NOT NULL DEFAULT '' CHECK (length(group_name) <= 255),
  text       text         NOT NULL,
  since      timestamptz  NOT NULL,
  PRIMARY KEY (name, topic, group_name)
);

-- For people and dashboards: what groups do, how far they are behind, who belongs to them, who holds what.

CREATE VIEW {group_status} AS
SELECT t.name AS topic, g.name AS group_name, g.generation, g.state, g.reason, g.state_at, g.ordered, m.live AS members,
       extract(epoch FROM clock_timestamp() - g.heartbeat_at)::float8 AS heartbeat_age_sec,
       g.state = 'active' AND m.live > 0 AND g.heartbeat_at > clock_timestamp() - g.heartbeat_timeout AS healthy,
       g.failures, g.processed + m.processed AS processed, g.failed + m.failed AS failed,
       g.filtered + m.filtered AS filtered, r.events AS taken, p.waiting AS parked, p.dead, g.backfill_state
FROM {group} g JOIN {topic} t ON t.id = g.topic_id,
     LATERAL (SELECT count(*) FILTER (WHERE expires_at > clock_timestamp()) AS live,
                     coalesce(sum(processed), 0)::bigint AS processed, coalesce(sum(failed), 0)::bigint AS failed,
                     coalesce(sum(filtered), 0)::bigint AS filtered
              FROM {member} WHERE group_id = g.id) m,
     LATERAL (SELECT coalesce(sum(events - coalesce(cardinality(finished), 0)), 0)::bigint AS events
              FROM {range} WHERE group_id = g.id) r,
     LATERAL (SELECT count(*) FILTER (WHERE state <> 'dead') AS waiting, count(*) FILTER (WHERE state = 'dead') AS dead
              FROM {parked} WHERE group_id = g.id) p;

-- `unread_at_most` counts numbers, also those of other shards and of transactions that rolled back; `lag()` counts events.
-- A tick's number is a count above 24 random bits: ticks behind are told by the count.
CREATE VIEW {group_lag} AS
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

CREATE VIEW {member_status} AS
SELECT t.name AS topic, g.name AS group_name, m.id, m.name, m.started_at, m.seen_at,
       extract(epoch FROM clock_timestamp() - m.seen_at)::float8 AS heartbeat_age_sec,
       m.seen_at > clock_timestamp() - interval '60 seconds' AS healthy, m.expires_at > clock_timestamp() AS alive,
       m.processed, m.failed, m.filtered
FROM {member} m JOIN {group} g ON g.id = m.group_id JOIN {topic} t ON t.id = g.topic_id;

CREATE VIEW {active_range} AS
SELECT t.name AS topic, g.name AS group_name, m.name AS member, r.shard, r.after, r.upto, r.events, r.attempts, r.until
FROM {range} r JOIN {group} g ON g.id = r.group_id JOIN {topic} t ON t.id = g.topic_id
JOIN {member} m ON m.id = r.owner AND m.expires_at > clock_timestamp()
WHERE r.until > clock_timestamp();
