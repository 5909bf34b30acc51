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
  received_at    integer      NOT NULL
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
  dead_at    integer NOT NULL
);

CREATE INDEX {dead_name}_pos ON {dead} (key_hash, position) WHERE position IS NOT NULL;

-- The next number of each key. It is never taken back: neither retention nor a replay starts a key anew.
CREATE TABLE {state} (
  key_hash     integer      NOT NULL,
  aggregate_id varchar(255) NOT NULL,
  next         integer      NOT NULL,
  moved_at     integer      NOT NULL,
  PRIMARY KEY (key_hash, aggregate_id)
) WITHOUT ROWID;

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
SELECT m.event_type, count(p.seq) AS pending, count(f.seq) AS processed, count(d.seq) AS dead,
       avg(f.waited) AS avg_processing_sec
FROM {message} m
LEFT JOIN {pending} p ON p.seq = m.seq
LEFT JOIN {done} f ON f.seq = m.seq
LEFT JOIN {dead} d ON d.seq = m.seq
GROUP BY m.event_type;
