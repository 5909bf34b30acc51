-- The core outbox. `event` is wide and never updated; `pending` is narrow and churns.
-- Times are microseconds since 1970 UTC. AUTOINCREMENT: a number is never given twice.

CREATE TABLE {event} (
  seq            integer      PRIMARY KEY AUTOINCREMENT,
  event_id       varchar(36)  NOT NULL,
  event_type     varchar(128) NOT NULL,
  aggregate_type varchar(64),                 -- NULL stands for __GLOBAL__
  aggregate_id   varchar(128),                -- the ordering key
  tenant_id      varchar(64),
  content_type   varchar(128),                -- NULL stands for application/json
  payload        blob         NOT NULL,       -- byte for byte as given
  headers        text,                        -- a JSON object of strings, or NULL
  occurred_at    integer      NOT NULL,
  deliver_at     integer,
  created_at     integer      NOT NULL,
  CONSTRAINT {event_name}_event_id_key UNIQUE (event_id),
  -- What relaybox.Event refuses, for those who write without it. Text is greater than any number.
  CONSTRAINT {event_name}_limits CHECK (
    seq >= 1 AND length(event_id) BETWEEN 1 AND 36 AND length(event_type) BETWEEN 1 AND 128
    AND length(aggregate_type) <= 64 AND length(aggregate_id) <= 128 AND length(tenant_id) <= 64
    AND length(content_type) <= 128 AND length(payload) <= 1048576 AND length(headers) <= 50000
    AND occurred_at BETWEEN -62135596800000000 AND 253402300799999999
    AND deliver_at BETWEEN -62135596800000000 AND 253402300799999999
    AND created_at BETWEEN -62135596800000000 AND 253402300799999999)
);

-- One row per event that still has work. `due` is when the row may be claimed next: for a waiting row its delivery time,
-- for a claimed one (owner set) the end of its lease. `since` is when it was written or given back: its age counts from
-- there, and a waiting row that has it waits for no clock, so that it stays due if the clock is set back. NULL: the row
-- waits for `due`, by its own wish or after a failure. `tenant` is that of the event, or empty: for fair claims, see
-- fair.sql.
CREATE TABLE {pending} (
  seq        integer PRIMARY KEY,
  due        integer NOT NULL,
  key_hash   integer NOT NULL,
  token      integer,
  owner      integer,
  attempts   integer NOT NULL,
  claimed_at integer,
  last_error text,
  since      integer,
  tenant     varchar(64) NOT NULL DEFAULT ''
);

CREATE INDEX {pending_name}_due ON {pending} (due, seq);

-- A way from one waiting key to the next.
CREATE INDEX {pending_name}_key ON {pending} (key_hash, seq);

CREATE TABLE {dead} (
  seq        integer PRIMARY KEY,
  key_hash   integer NOT NULL,
  attempts   integer NOT NULL,
  last_error text,
  dead_at    integer NOT NULL
);

-- A running process. Its claims are free as soon as `expires_at` has passed. The note tells people what they should know
-- of it: that the broker it sends to is away, say.
CREATE TABLE {instance} (
  id         integer      PRIMARY KEY AUTOINCREMENT,
  name       varchar(128) NOT NULL,
  role       varchar(16)  NOT NULL,
  started_at integer      NOT NULL,
  expires_at integer      NOT NULL,
  note       varchar(200)
);

-- Ordered delivery: who owns which shard of the keys, under which term.
CREATE TABLE {shard} (
  shard integer PRIMARY KEY,
  owner integer,
  term  integer NOT NULL DEFAULT 0,
  until integer NOT NULL DEFAULT 0
);

-- Ordered delivery: keys that wait for their failed head (`seq`). Later rows of the key are not claimed.
CREATE TABLE {hold} (
  key_hash integer PRIMARY KEY,
  seq      integer NOT NULL,
  parked   integer NOT NULL DEFAULT 0,
  since    integer NOT NULL
);

CREATE INDEX {hold_name}_seq ON {hold} (seq);

-- For people: times as text.
CREATE VIEW {status} AS
SELECT e.seq, e.event_id, e.event_type, coalesce(e.aggregate_type, '__GLOBAL__') AS aggregate_type,
       e.aggregate_id, e.tenant_id, coalesce(e.content_type, 'application/json') AS content_type,
       e.payload, e.headers,
       strftime('%Y-%m-%d %H:%M:%f', e.occurred_at / 1000000.0, 'unixepoch') AS occurred_at,
       strftime('%Y-%m-%d %H:%M:%f', e.created_at / 1000000.0, 'unixepoch') AS created_at,
       CASE WHEN d.seq IS NOT NULL THEN 3 WHEN p.seq IS NULL THEN 1
            WHEN p.attempts > CASE WHEN p.owner IS NULL THEN 0 ELSE 1 END THEN 2 ELSE 0 END AS status,
       coalesce(p.attempts, d.attempts) AS attempts,
       strftime('%Y-%m-%d %H:%M:%f', coalesce(p.due, e.deliver_at, e.created_at) / 1000000.0, 'unixepoch')
         AS available_at,
       strftime('%Y-%m-%d %H:%M:%f', d.dead_at / 1000000.0, 'unixepoch') AS dead_at,
       coalesce(p.last_error, d.last_error) AS last_error,
       i.name AS locked_by,
       strftime('%Y-%m-%d %H:%M:%f', p.claimed_at / 1000000.0, 'unixepoch') AS locked_at,
       CASE WHEN p.owner IS NOT NULL
            THEN strftime('%Y-%m-%d %H:%M:%f', p.due / 1000000.0, 'unixepoch') END AS locked_until
FROM {event} e
LEFT JOIN {pending} p ON p.seq = e.seq
LEFT JOIN {dead} d ON d.seq = e.seq
LEFT JOIN {instance} i ON i.id = p.owner;
