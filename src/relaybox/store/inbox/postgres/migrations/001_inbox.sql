-- An inbox. `message` is wide and rests; `pending` is narrow and churns. A drained message leaves its id: it is known for
-- longer than the rest is kept.

CREATE SEQUENCE {seq};

CREATE TABLE {message} (
  seq            bigint       PRIMARY KEY,    -- order of arrival
  event_id       text         COLLATE "C" NOT NULL UNIQUE CHECK (length(event_id) <= 255),
  event_type     text         NOT NULL CHECK (length(event_type) <= 255),
  source         text CHECK (length(source) <= 255),  -- who sent it
  aggregate_type text CHECK (length(aggregate_type) <= 255),  -- NULL stands for __GLOBAL__
  aggregate_id   text CHECK (length(aggregate_id) <= 255),  -- the ordering key
  tenant_id      text CHECK (length(tenant_id) <= 255),
  content_type   text CHECK (length(content_type) <= 255),  -- NULL stands for application/json
  payload        bytea,                       -- byte for byte as sent, never jsonb; NULL: drained, only the id is known
  headers        text,                        -- a JSON object of strings, or NULL
  occurred_at    timestamptz  NOT NULL,
  received_at    timestamptz  NOT NULL,
  -- What relaybox.Event refuses, for those who write without it; but what could not be read may be larger than an event.
  CONSTRAINT "{message_name}_limits" CHECK (
    seq >= 1 AND event_id <> '' AND event_type <> ''
    AND octet_length(payload) <= 8388608 AND octet_length(headers) <= 50000
    AND least(occurred_at, received_at) >= '0001-01-01 00:00+00'
    AND greatest(occurred_at, received_at) < '10000-01-01 00:00+00')
);

ALTER SEQUENCE {seq} OWNED BY {message}.seq;

CREATE INDEX "{message_name}_drained" ON {message} (received_at) WHERE payload IS NULL;

-- One row per message that is not processed yet. `due` is when that may be tried; of a claimed row (owner set) it is the
-- end of the lease; one that is held back until its predecessor is processed is never due.
CREATE TABLE {pending} (
  seq        bigint      PRIMARY KEY,
  due        timestamptz NOT NULL,
  key_hash   bigint      NOT NULL,            -- relaybox.ids.key_hash of the key
  position   bigint,                          -- its number among the messages of its key, from the header `sequence`
  priority   smallint    NOT NULL,            -- 1 to 9, from the header `priority`; 0: none
  held       boolean     NOT NULL DEFAULT false,
  replayed   boolean     NOT NULL DEFAULT false,
  attempts   integer     NOT NULL,
  strikes    integer     NOT NULL DEFAULT 0,  -- claims in a row that ended without an outcome
  token      bigint,
  owner      integer,
  claimed_at timestamptz,
  last_error text
) WITH (
  fillfactor = 70,
  autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.2,
  autovacuum_analyze_threshold = 5000, autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX "{pending_name}_due" ON {pending} (due, seq);

CREATE INDEX "{pending_name}_pos" ON {pending} (key_hash, position) INCLUDE (seq, replayed) WHERE position IS NOT NULL;

CREATE INDEX "{pending_name}_prio" ON {pending} (priority, due, seq) WHERE priority > 0;

-- The ids of everything accepted. (Of an adopted table it is a table: inbox.adopt.ids.)
CREATE VIEW {seen} AS SELECT event_id, received_at AS seen_at FROM {message};

-- When a message was processed. Written in the transaction of its effect.
CREATE TABLE {done} (
  seq          bigint      PRIMARY KEY,
  processed_at timestamptz NOT NULL,
  attempts     integer     NOT NULL,
  waited       float8      NOT NULL           -- seconds since it was received
);

CREATE INDEX "{done_name}_at" ON {done} (processed_at);

CREATE TABLE {dead} (
  seq        bigint      PRIMARY KEY,
  key_hash   bigint      NOT NULL,
  position   bigint,
  priority   smallint    NOT NULL,
  replayed   boolean     NOT NULL,
  attempts   integer     NOT NULL,
  last_error text,
  dead_at    timestamptz NOT NULL,
  told       boolean     NOT NULL DEFAULT false
);

CREATE INDEX "{dead_name}_pos" ON {dead} (key_hash, position) WHERE position IS NOT NULL;

CREATE INDEX "{dead_name}_new" ON {dead} (seq) WHERE NOT told;

-- The next number of each key. It is never taken back: neither retention nor a replay starts a key anew.
CREATE TABLE {state} (
  key_hash     bigint       NOT NULL,
  aggregate_id text         COLLATE "C" NOT NULL CHECK (length(aggregate_id) <= 255),
  next         bigint       NOT NULL,
  moved_at     timestamptz  NOT NULL,
  PRIMARY KEY (key_hash, aggregate_id)
) WITH (fillfactor = 80);

-- How the numbers by type change: written with every change, folded into the totals from time to time. Nobody waits for
-- anybody here, and a late commit is folded late. NULL: no change.
CREATE TABLE {journal} (
  event_type text         NOT NULL CHECK (length(event_type) <= 255),
  pending    integer,
  processed  integer,
  dead       integer,
  waited     bigint                       -- microseconds from received to processed, in sum
) WITH (
  autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0
);

-- What was folded. The view of the stats adds what was not yet.
CREATE TABLE {totals} (
  event_type text         PRIMARY KEY CHECK (length(event_type) <= 255),
  pending    bigint       NOT NULL,
  processed  bigint       NOT NULL,
  dead       bigint       NOT NULL,
  waited     bigint       NOT NULL
) WITH (fillfactor = 50);

-- Gaps that somebody was told of and that are open still.
CREATE TABLE {alert} (
  aggregate_id text         COLLATE "C" NOT NULL CHECK (length(aggregate_id) <= 255),
  first        bigint       NOT NULL,
  last         bigint       NOT NULL,
  told_at      timestamptz  NOT NULL,
  PRIMARY KEY (aggregate_id, first)
);

-- Work that one processor does for all, and when it is due again.
CREATE TABLE {turn} (
  job text        PRIMARY KEY CHECK (length(job) <= 16),
  due timestamptz NOT NULL
);

INSERT INTO {turn} (job, due) VALUES ('alerts', '-infinity');

-- A running processor. Its claims are free as soon as `expires_at` has passed.
CREATE TABLE {instance} (
  id         integer      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name       text         NOT NULL CHECK (length(name) <= 128),
  role       text         NOT NULL CHECK (length(role) <= 16),
  started_at timestamptz  NOT NULL,
  expires_at timestamptz  NOT NULL
);

-- What all processes that use this inbox must agree on.
CREATE TABLE {meta} (
  name  text        PRIMARY KEY CHECK (length(name) <= 64),
  value text        NOT NULL
);

-- Whether a key is the business of worker 0 … workers - 1: relaybox.inbox.is_mine in SQL. No key is everybody's.
CREATE FUNCTION {mine}(aggregate_id text, worker integer, workers integer) RETURNS boolean
  LANGUAGE sql IMMUTABLE PARALLEL SAFE
  RETURN coalesce(((('x' || substr(md5(aggregate_id), 1, 16))::bit(64)::bigint & 9223372036854775807) >> 32)
                  % workers::bigint = worker, true);

CREATE VIEW {status} AS
SELECT m.seq, m.event_id, m.event_type, m.source, coalesce(m.aggregate_type, '__GLOBAL__') AS aggregate_type,
       m.aggregate_id, m.tenant_id, coalesce(m.content_type, 'application/json') AS content_type,
       m.payload, m.headers, m.occurred_at, m.received_at,
       CASE WHEN d.seq IS NOT NULL THEN 'dead' WHEN p.seq IS NULL THEN 'processed' WHEN p.held THEN 'held'
            WHEN p.owner IS NOT NULL THEN 'claimed' WHEN p.attempts > 0 THEN 'retry' ELSE 'pending' END AS status,
       f.processed_at, coalesce(p.attempts, d.attempts, f.attempts) AS attempts,
       coalesce(p.last_error, d.last_error) AS last_error, d.dead_at, p.position,
       CASE WHEN p.owner IS NULL AND NOT p.held THEN p.due END AS due, i.name AS locked_by
FROM {message} m
LEFT JOIN {pending} p ON p.seq = m.seq
LEFT JOIN {dead} d ON d.seq = m.seq
LEFT JOIN {done} f ON f.seq = m.seq
LEFT JOIN {instance} i ON i.id = p.owner
WHERE m.payload IS NOT NULL;

CREATE VIEW {waiting} AS
SELECT m.seq, m.event_id, m.event_type, m.source, m.aggregate_id, m.received_at, p.position, p.priority, p.held,
       p.attempts, p.last_error, CASE WHEN p.owner IS NULL AND NOT p.held THEN p.due END AS due
FROM {pending} p JOIN {message} m ON m.seq = p.seq;

CREATE VIEW {letters} AS
SELECT m.seq, m.event_id, m.event_type, m.source, m.aggregate_id, m.received_at, d.position, d.attempts,
       d.last_error, d.dead_at
FROM {dead} d JOIN {message} m ON m.seq = d.seq;

CREATE VIEW {stats} AS
SELECT event_type, coalesce(sum(pending), 0)::bigint AS pending, coalesce(sum(processed), 0)::bigint AS processed,
       coalesce(sum(dead), 0)::bigint AS dead, (sum(waited) / 1e6 / nullif(sum(processed), 0::numeric))::float8 AS avg_processing_sec
FROM (SELECT event_type, pending, processed, dead, waited FROM {totals}
      UNION ALL SELECT event_type, pending, processed, dead, waited FROM {journal}) x
GROUP BY event_type
HAVING sum(pending) <> 0::numeric OR sum(processed) <> 0::numeric OR sum(dead) <> 0::numeric;

-- Inbox.health() in SQL, with the thresholds that it has by itself.
CREATE VIEW {health} AS
SELECT pending_count, dead_letter_count, avg_processing_time_sec, oldest_pending_age_sec, throughput_per_sec, processors,
       CASE WHEN pending_count >= 100000 OR dead_letter_count >= 100 OR oldest_pending_age_sec >= 900::float8 THEN 'critical'
            WHEN pending_count >= 1000 OR dead_letter_count >= 1 OR oldest_pending_age_sec >= 60::float8
                 OR (pending_count > 0 AND processors = 0) THEN 'degraded'
            ELSE 'healthy' END AS health_status
FROM (
  SELECT coalesce((SELECT sum(pending) FROM {stats}), 0)::bigint AS pending_count,
         coalesce((SELECT sum(dead) FROM {stats}), 0)::bigint AS dead_letter_count,
         l.waited AS avg_processing_time_sec,
         coalesce((SELECT extract(epoch FROM clock_timestamp() - m.received_at)::float8
                   FROM (SELECT seq FROM {pending} ORDER BY seq LIMIT 1) p JOIN {message} m ON m.seq = p.seq), 0)
           AS oldest_pending_age_sec,
         l.n::float8 / greatest(extract(epoch FROM clock_timestamp() - l.since)::float8, 1) AS throughput_per_sec,
         (SELECT count(*) FROM {instance} WHERE expires_at >= clock_timestamp()) AS processors
  FROM (SELECT count(*) AS n, coalesce(min(processed_at), clock_timestamp()) AS since,
               avg(least(greatest(waited, -1e12::float8), 1e12::float8)) AS waited
        FROM (SELECT processed_at, waited FROM {done} WHERE processed_at > now() - interval '1 minute'
              ORDER BY processed_at DESC LIMIT 1000) x) l) h;
