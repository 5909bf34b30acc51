-- The core outbox. `event` is wide and never updated; `pending` is narrow and churns.
-- Every statement may run twice: MySQL commits DDL by itself, and a migration may be cut in the middle.
-- Text compares byte by byte (utf8mb4_bin). Times are UTC.

CREATE TABLE IF NOT EXISTS {event} (
  seq            bigint       NOT NULL AUTO_INCREMENT PRIMARY KEY,
  event_id       varchar(36)  NOT NULL,
  event_type     varchar(128) NOT NULL,
  aggregate_type varchar(64),                 -- NULL stands for __GLOBAL__
  aggregate_id   varchar(128),                -- the ordering key
  tenant_id      varchar(64),
  content_type   varchar(128),                -- NULL stands for application/json
  payload        longblob     NOT NULL,       -- byte for byte as given
  headers        mediumtext,                  -- a JSON object of strings, or NULL
  occurred_at    datetime(6)  NOT NULL,
  deliver_at     datetime(6),
  created_at     datetime(6)  NOT NULL,
  UNIQUE KEY {event_name}_event_id_key (event_id),
  -- What relaybox.Event refuses, for those who write without it.
  CONSTRAINT {event_name}_limits CHECK (
    event_id <> '' AND event_type <> '' AND octet_length(payload) <= 1048576 AND octet_length(headers) <= 50000
    AND occurred_at >= '0001-01-01' AND deliver_at >= '0001-01-01' AND created_at >= '0001-01-01')
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row per event that still has work. `due` is when the row may be claimed next: for a waiting row its delivery time,
-- for a claimed one (owner set) the end of its lease. `since` is when it was written or given back: its age counts from
-- there, and a waiting row that has it waits for no clock, so that it stays due if the clock is set back. NULL: the row
-- waits for `due`, by its own wish or after a failure. `tenant` is that of the event, or empty: for fair claims, see
-- fair.sql.
CREATE TABLE IF NOT EXISTS {pending} (
  seq        bigint      NOT NULL PRIMARY KEY,
  due        datetime(6) NOT NULL,
  key_hash   bigint      NOT NULL,
  token      bigint,
  owner      bigint,
  attempts   integer     NOT NULL,
  claimed_at datetime(6),
  last_error text,
  since      datetime(6),
  tenant     varchar(64) NOT NULL DEFAULT '',
  KEY {pending_name}_due (due, seq),
  KEY {pending_name}_key (key_hash, seq)      -- a way from one waiting key to the next
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS {dead} (
  seq        bigint      NOT NULL PRIMARY KEY,
  key_hash   bigint      NOT NULL,
  attempts   integer     NOT NULL,
  last_error text,
  dead_at    datetime(6) NOT NULL
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- A running process. Its claims are free as soon as `expires_at` has passed. The note tells people what they should know
-- of it: that the broker it sends to is away, say.
CREATE TABLE IF NOT EXISTS {instance} (
  id         bigint       NOT NULL AUTO_INCREMENT PRIMARY KEY,
  name       varchar(128) NOT NULL,
  role       varchar(16)  NOT NULL,
  started_at datetime(6)  NOT NULL,
  expires_at datetime(6)  NOT NULL,
  note       varchar(200)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Ordered delivery: who owns which shard of the keys, under which term.
CREATE TABLE IF NOT EXISTS {shard} (
  shard integer     NOT NULL PRIMARY KEY,
  owner bigint,
  term  bigint      NOT NULL DEFAULT 0,
  until datetime(6) NOT NULL DEFAULT '1000-01-01 00:00:00'
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Ordered delivery: keys that wait for their failed head (`seq`). Later rows of the key are not claimed.
CREATE TABLE IF NOT EXISTS {hold} (
  key_hash bigint      NOT NULL PRIMARY KEY,
  seq      bigint      NOT NULL,
  parked   boolean     NOT NULL DEFAULT false,
  since    datetime(6) NOT NULL,
  KEY {hold_name}_seq (seq)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Ordered delivery: a key that a process delivers now, under the token of its claim. While a claimed row of the key has
-- that token and its lease has not ended, the key is taken. So a lease has no clock of its own: it is renewed and fenced
-- with its claim.
CREATE TABLE IF NOT EXISTS {lease} (
  key_hash bigint NOT NULL PRIMARY KEY,
  token    bigint NOT NULL
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE OR REPLACE SQL SECURITY INVOKER VIEW {status} AS
SELECT e.seq, e.event_id, e.event_type, coalesce(e.aggregate_type, '__GLOBAL__') AS aggregate_type,
       e.aggregate_id, e.tenant_id, coalesce(e.content_type, 'application/json') AS content_type,
       e.payload, e.headers, e.occurred_at, e.created_at,
       CASE WHEN d.seq IS NOT NULL THEN 3 WHEN p.seq IS NULL THEN 1
            WHEN p.attempts > CASE WHEN p.owner IS NULL THEN 0 ELSE 1 END THEN 2 ELSE 0 END AS status,
       coalesce(p.attempts, d.attempts) AS attempts,
       coalesce(p.due, e.deliver_at, e.created_at) AS available_at,
       d.dead_at, coalesce(p.last_error, d.last_error) AS last_error,
       i.name AS locked_by, p.claimed_at AS locked_at,
       CASE WHEN p.owner IS NOT NULL THEN p.due END AS locked_until
FROM {event} e
LEFT JOIN {pending} p ON p.seq = e.seq
LEFT JOIN {dead} d ON d.seq = e.seq
LEFT JOIN {instance} i ON i.id = p.owner;
