-- An inbox. `message` is wide and never updated; `pending` is narrow and churns; `seen` outlives the messages.
-- Times are microseconds since 1970 UTC. AUTOINCREMENT: a number is never given twice.

CREATE TABLE {message} (
  seq            integer      PRIMARY KEY AUTOINCREMENT,   -- order of arrival
  event_id       varchar(255) NOT NULL,
  event_type     varchar(255) NOT NULL,
  source         varchar(255),                -- who sent it
  aggregate_type varchar(255),                -- NULL stands for __GLOBAL__
  aggregate_id   varchar(255),                -- the ordering key
  tenant_id      varchar(255),
  content_type   varchar(255),                -- NULL stands for application/json
  payload        blob         NOT NULL,       -- byte for byte as sent
  headers        text,                        -- a JSON object of strings, or NULL
  occurred_at    integer      NOT NULL,
  received_at    integer      NOT NULL,
  -- What relaybox.Event refuses, for those who write without it; but what could not be read may be larger than an event.
  -- Text is greater than any number.
  CONSTRAINT {message_name}_limits CHECK (
    seq >= 1 AND length(event_id) BETWEEN 1 AND 255 AND length(event_type) BETWEEN 1 AND 255
    AND length(aggregate_type) <= 255 AND length(aggregate_id) <= 255 AND length(tenant_id) <= 255
    AND length(content_type) <= 255 AND length(payload) <= 8388608 AND length(headers) <= 50000
    AND occurred_at BETWEEN -62135596800000000 AND 253402300799999999
    AND received_at BETWEEN -62135596800000000 AND 253402300799999999)
);

CREATE INDEX {message_name}_event_id ON {message} (event_id);

-- One row per message that is not processed yet. `due` is when that may be tried; of a claimed row (owner set) it is the
-- end of the lease; one that is held back until its predecessor is processed is never due.
CREATE TABLE {pending} (
  seq        integer PRIMARY KEY,
  due        integer NOT NULL,
  key_hash   integer NOT NULL,                -- relaybox.ids.key_hash of the key
  position   integer,                         -- its number among the messages of its key, from the header `sequence`
  priority   integer NOT NULL,                -- 1 to 9, from the header `priority`; 0: none
  held       integer NOT NULL DEFAULT 0,
  replayed   integer NOT NULL DEFAULT 0,
  attempts   integer NOT NULL,
  strikes    integer NOT NULL DEFAULT 0,      -- claims in a row that ended without an outcome
  token      integer,
  owner      integer,
  claimed_at integer,
  last_error text
);

CREATE INDEX {pending_name}_due ON {pending} (due, seq);

CREATE INDEX {pending_name}_pos ON {pending} (key_hash, position, replayed) WHERE position IS NOT NULL;

CREATE INDEX {pending_name}_prio ON {pending} (priority, due, seq) WHERE priority > 0;

-- The ids of everything accepted, for longer than the messages are kept.
CREATE TABLE {seen} (
  event_id varchar(255) PRIMARY KEY,
  seen_at  integer      NOT NULL
) WITHOUT ROWID;

CREATE INDEX {seen_name}_at ON {seen} (seen_at);

-- When a message was processed. Written in the transaction of its effect.
CREATE TABLE {done} (
  seq          integer PRIMARY KEY,
  processed_at integer NOT NULL,
  attempts     integer NOT NULL,
  waited       real    NOT NULL               -- seconds since it was received
);

CREATE INDEX {done_name}_at ON {done} (processed_at);

CREATE TABLE {dead} (
  seq        integer PRIMARY KEY,
  key_hash   integer NOT NULL,
  position   integer,
  priority   integer NOT NULL,
  replayed   integer NOT NULL,
  attempts   integer NOT NULL,
  last_error text,
  dead_at    integer NOT NULL,
  told       integer NOT NULL DEFAULT 0
);

CREATE INDEX {dead_name}_pos ON {dead} (key_hash, position) WHERE position IS NOT NULL;

CREATE INDEX {dead_name}_new ON {dead} (seq) WHERE NOT told;

-- The next number of each key. It is never taken back: neither retention nor a replay starts a key anew.
CREATE TABLE {state} (
  key_hash     integer      NOT NULL,
  aggregate_id varchar(255) NOT NULL,
  next         integer      NOT NULL,
  moved_at     integer      NOT NULL,
  PRIMARY KEY (key_hash, aggregate_id)
) WITHOUT ROWID;

-- How the numbers by type change: written with every change, folded into the totals from time to time. Nobody waits for
-- anybody here, and a late commit is folded late. NULL: no change.
CREATE TABLE {journal} (
  id         integer      PRIMARY KEY,
  event_type varchar(255) NOT NULL,
  pending    integer,
  processed  integer,
  dead       integer,
  waited     integer                      -- microseconds from received to processed, in sum
);

-- What was folded. The view of the stats adds what was not yet.
CREATE TABLE {totals} (
  event_type varchar(255) PRIMARY KEY,
  pending    integer      NOT NULL,
  processed  integer      NOT NULL,
  dead       integer      NOT NULL,
  waited     integer      NOT NULL
) WITHOUT ROWID;

-- Gaps that somebody was told of and that are open still.
CREATE TABLE {alert} (
  aggregate_id varchar(255) NOT NULL,
  first        integer      NOT NULL,
  last         integer      NOT NULL,
  told_at      integer      NOT NULL,
  PRIMARY KEY (aggregate_id, first)
) WITHOUT ROWID;

-- Work that one processor does for all, and when it is due again.
CREATE TABLE {turn} (
  job varchar(16) PRIMARY KEY,
  due integer     NOT NULL
) WITHOUT ROWID;

INSERT INTO {turn} (job, due) VALUES ('alerts', 0);

-- A running processor. Its claims are free as soon as `expires_at` has passed.
CREATE TABLE {instance} (
  id         integer      PRIMARY KEY AUTOINCREMENT,
  name       varchar(128) NOT NULL,
  role       varchar(16)  NOT NULL,
  started_at integer      NOT NULL,
  expires_at integer      NOT NULL
);

-- What all processes that use this inbox must agree on.
CREATE TABLE {meta} (
  name  varchar(64) PRIMARY KEY,
  value text        NOT NULL
) WITHOUT ROWID;

-- For people: times as text.
CREATE VIEW {status} AS
SELECT m.seq, m.event_id, m.event_type, m.source, coalesce(m.aggregate_type, '__GLOBAL__') AS aggregate_type,
       m.aggregate_id, m.tenant_id, coalesce(m.content_type, 'application/json') AS content_type,
       m.payload, m.headers,
       strftime('%Y-%m-%d %H:%M:%f', m.occurred_at / 1000000.0, 'unixepoch') AS occurred_at,
       strftime('%Y-%m-%d %H:%M:%f', m.received_at / 1000000.0, 'unixepoch') AS received_at,
       CASE WHEN d.seq IS NOT NULL THEN 'dead' WHEN p.seq IS NULL THEN 'processed' WHEN p.held THEN 'held'
            WHEN p.owner IS NOT NULL THEN 'claimed' WHEN p.attempts > 0 THEN 'retry' ELSE 'pending' END AS status,
       strftime('%Y-%m-%d %H:%M:%f', f.processed_at / 1000000.0, 'unixepoch') AS processed_at,
       coalesce(p.attempts, d.attempts, f.attempts) AS attempts,
       coalesce(p.last_error, d.last_error) AS last_error,
       strftime('%Y-%m-%d %H:%M:%f', d.dead_at / 1000000.0, 'unixepoch') AS dead_at, p.position,
       CASE WHEN p.owner IS NULL AND NOT p.held
            THEN strftime('%Y-%m-%d %H:%M:%f', p.due / 1000000.0, 'unixepoch') END AS due,
       i.name AS locked_by
FROM {message} m
LEFT JOIN {pending} p ON p.seq = m.seq
LEFT JOIN {dead} d ON d.seq = m.seq
LEFT JOIN {done} f ON f.seq = m.seq
LEFT JOIN {instance} i ON i.id = p.owner;

CREATE VIEW {waiting} AS
SELECT m.seq, m.event_id, m.event_type, m.source, m.aggregate_id,
       strftime('%Y-%m-%d %H:%M:%f', m.received_at / 1000000.0, 'unixepoch') AS received_at,
       p.position, p.priority, p.held, p.attempts, p.last_error,
       CASE WHEN p.owner IS NULL AND NOT p.held
            THEN strftime('%Y-%m-%d %H:%M:%f', p.due / 1000000.0, 'unixepoch') END AS due
FROM {pending} p JOIN {message} m ON m.seq = p.seq;

CREATE VIEW {letters} AS
SELECT m.seq, m.event_id, m.event_type, m.source, m.aggregate_id,
       strftime('%Y-%m-%d %H:%M:%f', m.received_at / 1000000.0, 'unixepoch') AS received_at,
       d.position, d.attempts, d.last_error,
       strftime('%Y-%m-%d %H:%M:%f', d.dead_at / 1000000.0, 'unixepoch') AS dead_at
FROM {dead} d JOIN {message} m ON m.seq = d.seq;

CREATE VIEW {stats} AS
SELECT event_type, CAST(total(pending) AS integer) AS pending, CAST(total(processed) AS integer) AS processed,
       CAST(total(dead) AS integer) AS dead,
       total(waited) / 1e6 / nullif(total(processed), 0) AS avg_processing_sec
FROM (SELECT event_type, pending, processed, dead, waited FROM {totals}
      UNION ALL SELECT event_type, pending, processed, dead, waited FROM {journal}) x
GROUP BY event_type
HAVING total(pending) <> 0 OR total(processed) <> 0 OR total(dead) <> 0;

-- Inbox.health() in SQL, with the thresholds that it has by itself.
CREATE VIEW {health} AS
WITH clock AS (SELECT CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS integer) * 1000 AS now),
lately AS (
  SELECT processed_at, waited FROM {done} WHERE processed_at > (SELECT now FROM clock) - 60000000
  ORDER BY processed_at DESC LIMIT 1000)
SELECT pending_count, dead_letter_count, avg_processing_time_sec, oldest_pending_age_sec, throughput_per_sec, processors,
       CASE WHEN pending_count >= 100000 OR dead_letter_count >= 100 OR oldest_pending_age_sec >= 900 THEN 'critical'
            WHEN pending_count >= 1000 OR dead_letter_count >= 1 OR oldest_pending_age_sec >= 60
                 OR (pending_count > 0 AND processors = 0) THEN 'degraded'
            ELSE 'healthy' END AS health_status
FROM (
  SELECT coalesce((SELECT sum(pending) FROM {stats}), 0) AS pending_count,
         coalesce((SELECT sum(dead) FROM {stats}), 0) AS dead_letter_count,
         (SELECT avg(waited) FROM lately) AS avg_processing_time_sec,
         coalesce((SELECT (c.now - m.received_at) / 1000000.0
                   FROM (SELECT min(seq) AS seq FROM {pending}) p JOIN {message} m ON m.seq = p.seq), 0.0)
           AS oldest_pending_age_sec,
         (SELECT count(*) / max(coalesce((c.now - min(processed_at)) / 1000000.0, 1.0), 1.0) FROM lately)
           AS throughput_per_sec,
         (SELECT count(*) FROM {instance} WHERE expires_at >= c.now) AS processors
  FROM clock c) h;
