-- An inbox. `message` is wide and never updated; `pending` is narrow and churns; `seen` outlives the messages.
-- Every statement may run twice: MySQL commits DDL by itself, and a migration may be cut in the middle. Times are UTC.

CREATE TABLE IF NOT EXISTS {message} (
  seq            bigint       NOT NULL AUTO_INCREMENT PRIMARY KEY,   -- order of arrival
  event_id       varchar(255) NOT NULL,
  event_type     varchar(255) NOT NULL,
  source         varchar(255),                -- who sent it
  aggregate_type varchar(255),                -- NULL stands for __GLOBAL__
  aggregate_id   varchar(255),                -- the ordering key
  tenant_id      varchar(255),
  content_type   varchar(255),                -- NULL stands for application/json
  payload        longblob     NOT NULL,       -- byte for byte as sent
  headers        mediumtext,                  -- a JSON object of strings, or NULL
  occurred_at    datetime(6)  NOT NULL,
  received_at    datetime(6)  NOT NULL,
  KEY {message_name}_event_id (event_id),
  -- What relaybox.Event refuses, for those who write without it; but what could not be read may be larger than an event.
  CONSTRAINT {message_name}_limits CHECK (
    event_id <> '' AND event_type <> '' AND octet_length(payload) <= 8388608 AND octet_length(headers) <= 50000
    AND occurred_at >= '0001-01-01' AND received_at >= '0001-01-01')
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row per message that is not processed yet. `due` is when that may be tried; of a claimed row (owner set) it is the
-- end of the lease; one that is held back until its predecessor is processed is never due.
CREATE TABLE IF NOT EXISTS {pending} (
  seq        bigint      NOT NULL PRIMARY KEY,
  due        datetime(6) NOT NULL,
  key_hash   bigint      NOT NULL,            -- relaybox.ids.key_hash of the key
  position   bigint,                          -- its number among the messages of its key, from the header `sequence`
  priority   smallint    NOT NULL,            -- 1 to 9, from the header `priority`. 0: none
  held       boolean     NOT NULL DEFAULT false,
  replayed   boolean     NOT NULL DEFAULT false,
  attempts   integer     NOT NULL,
  strikes    integer     NOT NULL DEFAULT 0,  -- claims in a row that ended without an outcome
  token      bigint,
  owner      bigint,
  claimed_at datetime(6),
  last_error text,
  KEY {pending_name}_due (due, seq),
  KEY {pending_name}_pos (key_hash, position, replayed),
  KEY {pending_name}_prio (priority, due, seq)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The ids of everything accepted, for longer than the messages are kept. As bytes: every text collation that both
-- servers know takes 'a' and 'a ' for the same id, and would drop a message.
CREATE TABLE IF NOT EXISTS {seen} (
  event_id varbinary(1020) NOT NULL PRIMARY KEY,
  token    bigint          NOT NULL,          -- of the batch that brought it
  seen_at  datetime(6)     NOT NULL,
  KEY {seen_name}_at (seen_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- When a message was processed. Written in the transaction of its effect.
CREATE TABLE IF NOT EXISTS {done} (
  seq          bigint      NOT NULL PRIMARY KEY,
  processed_at datetime(6) NOT NULL,
  attempts     integer     NOT NULL,
  waited       double      NOT NULL,          -- seconds since it was received
  KEY {done_name}_at (processed_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS {dead} (
  seq        bigint      NOT NULL PRIMARY KEY,
  key_hash   bigint      NOT NULL,
  position   bigint,
  priority   smallint    NOT NULL,
  replayed   boolean     NOT NULL,
  attempts   integer     NOT NULL,
  last_error text,
  dead_at    datetime(6) NOT NULL,
  told       boolean     NOT NULL DEFAULT false,
  KEY {dead_name}_new (told, seq),
  KEY {dead_name}_pos (key_hash, position)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The next number of each key. It is never taken back: neither retention nor a replay starts a key anew. As bytes, for
-- the reason of the ids.
CREATE TABLE IF NOT EXISTS {state} (
  key_hash     bigint          NOT NULL,
  aggregate_id varbinary(1020) NOT NULL,
  next         bigint          NOT NULL,
  moved_at     datetime(6)     NOT NULL,
  PRIMARY KEY (key_hash, aggregate_id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- How the numbers by type change: written with every change, folded into the totals from time to time. Nobody waits for
-- anybody here, and a late commit is folded late. NULL: no change.
CREATE TABLE IF NOT EXISTS {journal} (
  id         bigint       NOT NULL AUTO_INCREMENT PRIMARY KEY,
  event_type varchar(255) NOT NULL,
  pending    integer,
  processed  integer,
  dead       integer,
  waited     bigint                       -- microseconds from received to processed, in sum
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What was folded. The view of the stats adds what was not yet.
CREATE TABLE IF NOT EXISTS {totals} (
  event_type varchar(255) NOT NULL PRIMARY KEY,
  pending    bigint       NOT NULL,
  processed  bigint       NOT NULL,
  dead       bigint       NOT NULL,
  waited     bigint       NOT NULL
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Gaps that somebody was told of and that are open still.
CREATE TABLE IF NOT EXISTS {alert} (
  aggregate_id varbinary(1020) NOT NULL,
  first        bigint          NOT NULL,
  last         bigint          NOT NULL,
  told_at      datetime(6)     NOT NULL,
  PRIMARY KEY (aggregate_id, first)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Work that one processor does for all, and when it is due again.
CREATE TABLE IF NOT EXISTS {turn} (
  job varchar(16) NOT NULL PRIMARY KEY,
  due datetime(6) NOT NULL
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

INSERT IGNORE INTO {turn} (job, due) VALUES ('alerts', '1970-01-01');

-- A running processor. Its claims are free as soon as `expires_at` has passed.
CREATE TABLE IF NOT EXISTS {instance} (
  id         bigint       NOT NULL AUTO_INCREMENT PRIMARY KEY,
  name       varchar(128) NOT NULL,
  role       varchar(16)  NOT NULL,
  started_at datetime(6)  NOT NULL,
  expires_at datetime(6)  NOT NULL
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What all processes that use this inbox must agree on.
CREATE TABLE IF NOT EXISTS {meta} (
  name  varchar(64) NOT NULL PRIMARY KEY,
  value text        NOT NULL
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE OR REPLACE VIEW {status} AS
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
LEFT JOIN {instance} i ON i.id = p.owner;

CREATE OR REPLACE VIEW {waiting} AS
SELECT m.seq, m.event_id, m.event_type, m.source, m.aggregate_id, m.received_at, p.position, p.priority, p.held,
       p.attempts, p.last_error, CASE WHEN p.owner IS NULL AND NOT p.held THEN p.due END AS due
FROM {pending} p JOIN {message} m ON m.seq = p.seq;

CREATE OR REPLACE VIEW {letters} AS
SELECT m.seq, m.event_id, m.event_type, m.source, m.aggregate_id, m.received_at, d.position, d.attempts,
       d.last_error, d.dead_at
FROM {dead} d JOIN {message} m ON m.seq = d.seq;

CREATE OR REPLACE VIEW {stats} AS
SELECT event_type, CAST(coalesce(sum(pending), 0) AS signed) AS pending, CAST(coalesce(sum(processed), 0) AS signed) AS processed,
       CAST(coalesce(sum(dead), 0) AS signed) AS dead, sum(waited) / 1e6 / nullif(sum(processed), 0) AS avg_processing_sec
FROM (SELECT event_type, pending, processed, dead, waited FROM {totals}
      UNION ALL SELECT event_type, pending, processed, dead, waited FROM {journal}) x
GROUP BY event_type
HAVING sum(pending) <> 0 OR sum(processed) <> 0 OR sum(dead) <> 0;

-- Inbox.health() in SQL, with the thresholds that it has by itself.
CREATE OR REPLACE VIEW {health} AS
SELECT pending_count, dead_letter_count, avg_processing_time_sec, oldest_pending_age_sec, throughput_per_sec, processors,
       CASE WHEN pending_count >= 100000 OR dead_letter_count >= 100 OR oldest_pending_age_sec >= 900 THEN 'critical'
            WHEN pending_count >= 1000 OR dead_letter_count >= 1 OR oldest_pending_age_sec >= 60
                 OR (pending_count > 0 AND processors = 0) THEN 'degraded'
            ELSE 'healthy' END AS health_status
FROM (
  SELECT CAST(coalesce((SELECT sum(pending) FROM {stats}), 0) AS signed) AS pending_count,
         CAST(coalesce((SELECT sum(dead) FROM {stats}), 0) AS signed) AS dead_letter_count,
         l.waited AS avg_processing_time_sec,
         coalesce((SELECT timestampdiff(MICROSECOND, m.received_at, utc_timestamp(6)) / 1000000e0
                   FROM (SELECT min(seq) AS seq FROM {pending}) p JOIN {message} m ON m.seq = p.seq), 0)
           AS oldest_pending_age_sec,
         l.n / greatest(coalesce(timestampdiff(MICROSECOND, l.since, utc_timestamp(6)) / 1000000e0, 1), 1)
           AS throughput_per_sec,
         (SELECT count(*) FROM {instance} i WHERE i.expires_at >= utc_timestamp(6)) AS processors
  FROM (SELECT count(*) AS n, min(processed_at) AS since, avg(waited) AS waited
        FROM (SELECT processed_at, waited FROM {done} WHERE processed_at > utc_timestamp(6) - INTERVAL 60 SECOND
              ORDER BY processed_at DESC LIMIT 1000) x) l) h;
