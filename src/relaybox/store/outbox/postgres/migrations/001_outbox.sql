-- The core outbox. `event` is wide and never updated; `pending` is narrow and churns.

CREATE SEQUENCE {seq};

CREATE TABLE {event} (
  seq            bigint       PRIMARY KEY DEFAULT nextval('{seq}'),
  event_id       text         COLLATE "C" NOT NULL CHECK (length(event_id) <= 36),
  event_type     text         NOT NULL CHECK (length(event_type) <= 128),
  aggregate_type text CHECK (length(aggregate_type) <= 64),  -- NULL stands for __GLOBAL__
  aggregate_id   text CHECK (length(aggregate_id) <= 128),  -- the ordering key
  tenant_id      text CHECK (length(tenant_id) <= 64),
  content_type   text CHECK (length(content_type) <= 128),  -- NULL stands for application/json
  payload        bytea        NOT NULL,       -- byte for byte as given, never jsonb
  headers        text,                        -- a JSON object of strings, or NULL
  occurred_at    timestamptz  NOT NULL,
  deliver_at     timestamptz,
  created_at     timestamptz  NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT "{event_name}_event_id_key" UNIQUE (event_id),
  -- What relaybox.Event refuses, for those who write without it. A claim says in 64 bits which event and which attempt.
  CONSTRAINT "{event_name}_limits" CHECK (
    seq BETWEEN 1 AND 140737488355327 AND event_id <> '' AND event_type <> ''
    AND octet_length(payload) <= 1048576 AND octet_length(headers) <= 50000
    AND least(occurred_at, deliver_at, created_at) >= '0001-01-01 00:00+00'
    AND greatest(occurred_at, deliver_at, created_at) < '10000-01-01 00:00+00')
);

ALTER SEQUENCE {seq} OWNED BY {event}.seq;

-- 63 bits of md5, the same number as relaybox.ids.key_hash: (hash >> 32) % shards is a key's shard.
CREATE FUNCTION {hash}(key text) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
  RETURN ('x' || substr(md5(key), 1, 16))::bit(64)::bigint & 9223372036854775807;

-- One row per event that waits alone: written singly, delayed, or to be tried again. `due` is when it may be
-- claimed. `since` is when it was written or given back: its age counts from there, and the row waits for no clock, so
-- that it stays due if the database's clock is set back. NULL: the row waits for `due`, by its own wish or after a
-- failure. Finished events touch no index here. `tenant` is that of the event, or empty: for fair claims, see fair.sql.
CREATE TABLE {pending} (
  seq        bigint      PRIMARY KEY,
  due        timestamptz NOT NULL,
  key_hash   bigint      NOT NULL,
  attempts   integer     NOT NULL,
  tenant     text        COLLATE "C" NOT NULL DEFAULT '',
  last_error text,
  since      timestamptz
) WITH (
  autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.2,
  autovacuum_analyze_threshold = 5000, autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX "{pending_name}_due" ON {pending} (due, seq);

-- A way from one waiting key to the next.
CREATE INDEX "{pending_name}_key" ON {pending} (key_hash, seq);

-- One row per batch of events. Without an owner it waits: any process may claim it after `until`, in which it is like
-- a pending row, only cheaper. With an owner it is a claim and `until` ends its lease: claiming moves events in,
-- settling takes them out, the token fences every one of them. So neither a batched write nor a lease costs a row per
-- event. An item is seq * 65536 + attempts, in seq order. `since` is that of the event that waits longest.
-- `tenant` is that of all events of a waiting batch; NULL: they have several.
CREATE TABLE {claim} (
  token      bigint      PRIMARY KEY,
  owner      integer,
  until      timestamptz NOT NULL,
  claimed_at timestamptz,
  items      bigint[]    NOT NULL,
  since      timestamptz,
  tenant     text        COLLATE "C"
) WITH (
  autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000,
  autovacuum_analyze_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX "{claim_name}_waiting" ON {claim} (until) WHERE owner IS NULL;

ALTER TABLE {claim} ALTER COLUMN items SET STORAGE EXTERNAL;

CREATE TABLE {dead} (
  seq        bigint      PRIMARY KEY,
  attempts   integer     NOT NULL,
  last_error text,
  dead_at    timestamptz NOT NULL
);

-- A running process. Its claims are free as soon as `expires_at` has passed. The note tells people what they should know
-- of it: that the broker it sends to is away, say.
CREATE TABLE {instance} (
  id         integer     GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name       text         NOT NULL CHECK (length(name) <= 128),
  role       text        NOT NULL CHECK (length(role) <= 16),
  started_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  note       text CHECK (length(note) <= 200)
);

-- Ordered delivery: who owns which shard of the keys, under which term.
CREATE TABLE {shard} (
  shard integer     PRIMARY KEY,
  owner integer,
  term  bigint      NOT NULL DEFAULT 0,
  until timestamptz NOT NULL DEFAULT '-infinity'
);

-- Ordered delivery: keys that wait for their failed head (`seq`). Later rows of the key are not claimed.
CREATE TABLE {hold} (
  key_hash bigint      PRIMARY KEY,
  seq      bigint      NOT NULL,
  parked   boolean     NOT NULL DEFAULT false,
  since    timestamptz NOT NULL
);

-- Ordered delivery: a key that a process delivers now, under the token of its claim. While that claim exists the key is
-- taken; when it is settled, expired or taken over the key is free. So a lease has no clock of its own: it is renewed and
-- fenced with its claim.
CREATE TABLE {lease} (
  key_hash bigint PRIMARY KEY,
  token    bigint NOT NULL
) WITH (
  autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000,
  autovacuum_analyze_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);

CREATE VIEW {status} AS
SELECT e.seq, e.event_id, e.event_type, coalesce(e.aggregate_type, '__GLOBAL__') AS aggregate_type,
       e.aggregate_id, e.tenant_id, coalesce(e.content_type, 'application/json') AS content_type,
       e.payload, e.headers, e.occurred_at, e.created_at,
       CASE WHEN d.seq IS NOT NULL THEN 3 WHEN p.seq IS NULL AND k.seq IS NULL THEN 1
            WHEN p.attempts > 0 OR k.attempts > 1 THEN 2 ELSE 0 END AS status,
       coalesce(p.attempts, k.attempts, d.attempts) AS attempts,
       coalesce(p.due, e.deliver_at, e.created_at) AS available_at,
       d.dead_at, coalesce(p.last_error, d.last_error) AS last_error,
       i.name AS locked_by, k.claimed_at AS locked_at, k.until AS locked_until
FROM {event} e
LEFT JOIN {pending} p ON p.seq = e.seq
LEFT JOIN {dead} d ON d.seq = e.seq
LEFT JOIN (SELECT item / 65536 AS seq, item % 65536::bigint AS attempts, c.owner, c.claimed_at, c.until
           FROM {claim} c, unnest(c.items) AS item) k ON k.seq = e.seq
LEFT JOIN {instance} i ON i.id = k.owner;
