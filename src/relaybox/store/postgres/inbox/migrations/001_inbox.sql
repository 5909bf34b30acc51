-- An inbox. `message` is wide and never updated; `pending` is narrow and churns; `seen` outlives the messages.

CREATE SEQUENCE {seq};

CREATE TABLE {message} (
  seq            bigint       PRIMARY KEY,    -- order of arrival
  event_id       varchar(255) COLLATE "C" NOT NULL,
  event_type     varchar(255) NOT NULL,
  source         varchar(255),                -- who sent it
  aggregate_type varchar(255),                -- NULL stands for __GLOBAL__
  aggregate_id   varchar(255),                -- the ordering key
  tenant_id      varchar(255),
  content_type   varchar(255),                -- NULL stands for application/json
  payload        bytea        NOT NULL,       -- byte for byte as sent, never jsonb
  headers        text,                        -- a JSON object of strings, or NULL
  occurred_at    timestamptz  NOT NULL,
  received_at    timestamptz  NOT NULL
);

ALTER SEQUENCE {seq} OWNED BY {message}.seq;

CREATE INDEX "{message_name}_event_id" ON {message} (event_id);

-- One row per message that is not processed yet. `due` is when that may be tried.
CREATE TABLE {pending} (
  seq        bigint      PRIMARY KEY,
  due        timestamptz NOT NULL,
  key_hash   bigint      NOT NULL,            -- relaybox.ids.key_hash of the key
  attempts   integer     NOT NULL,
  last_error text
) WITH (
  autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.2,
  autovacuum_analyze_threshold = 5000, autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX "{pending_name}_due" ON {pending} (due, seq);

-- The ids of everything accepted, for longer than the messages are kept.
CREATE TABLE {seen} (
  event_id varchar(255) COLLATE "C" PRIMARY KEY,
  seen_at  timestamptz  NOT NULL
);
