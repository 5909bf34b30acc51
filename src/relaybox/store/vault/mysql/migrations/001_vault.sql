-- One row per data key, wrapped by a master key that is elsewhere. An erased key keeps its id alone, so that readers
-- can tell what was erased from what was never here. Times are UTC.

CREATE TABLE IF NOT EXISTS {data_key} (
  id         varchar(26)  NOT NULL PRIMARY KEY,   -- ascending in time
  subject    varchar(255),                        -- whose payloads it encrypts; NULL: erased, copies and all
  master     varchar(64),                         -- which master key wraps it
  wrapped    text,                                -- base64. NULL: destroyed
  created_at datetime(6)  NOT NULL,
  erased_at  datetime(6),
  KEY {data_key_name}_subject (subject)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
