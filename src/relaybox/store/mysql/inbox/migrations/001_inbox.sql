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
  KEY {message_name}_event_id (event_id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row per message that is not processed yet. `due` is when that may be tried; of a claimed row (owner set) it is the
-- end of the lease.
CREATE TABLE IF NOT EXISTS {pending} (
  seq        bigint      NOT NULL PRIMARY KEY,
  due        datetime(6) NOT NULL,
  key_hash   bigint      NOT NULL,            -- relaybox.ids.key_hash of the key
  token      bigint,
  owner      bigint,
  attempts   integer     NOT NULL,
  claimed_at datetime(6),
  last_error text,
  KEY {pending_name}_due (due, seq)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The ids of everything accepted, for longer than the messages are kept. As bytes: every text collation that both
-- servers know takes 'a' and 'a ' for the same id, and would drop a message.
CREATE TABLE IF NOT EXISTS {seen} (
  event_id varbinary(1020) NOT NULL PRIMARY KEY,
  token    bigint          NOT NULL,          -- of the batch that brought it
  seen_at  datetime(6)     NOT NULL
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
