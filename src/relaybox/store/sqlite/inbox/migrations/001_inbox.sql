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
-- end of the lease.
CREATE TABLE {pending} (
  seq        integer PRIMARY KEY,
  due        integer NOT NULL,
  key_hash   integer NOT NULL,                -- relaybox.ids.key_hash of the key
  token      integer,
  owner      integer,
  attempts   integer NOT NULL,
  claimed_at integer,
  last_error text
);

CREATE INDEX {pending_name}_due ON {pending} (due, seq);

-- The ids of everything accepted, for longer than the messages are kept.
CREATE TABLE {seen} (
  event_id varchar(255) PRIMARY KEY,
  seen_at  integer      NOT NULL
) WITHOUT ROWID;
