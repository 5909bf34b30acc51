-- One row per data key, wrapped by a master key that is elsewhere. An erased key keeps its id alone, so that readers
-- can tell what was erased from what was never here.

CREATE TABLE {data_key} (
  id         varchar(26)  COLLATE "C" NOT NULL PRIMARY KEY,   -- ascending in time
  subject    varchar(255) COLLATE "C",                        -- whose payloads it encrypts; NULL: erased, copies and all
  master     varchar(64)  COLLATE "C",                        -- which master key wraps it
  wrapped    text,                                            -- base64. NULL: destroyed
  created_at timestamptz  NOT NULL,
  erased_at  timestamptz
);

CREATE INDEX "{data_key_name}_subject" ON {data_key} (subject);
