-- One row per data key, wrapped by a master key that is elsewhere. An erased key keeps its id alone, so that readers
-- can tell what was erased from what was never here. Times are microseconds since 1970 UTC.

CREATE TABLE {data_key} (
  id         text    NOT NULL PRIMARY KEY,   -- ascending in time
  subject    text,                           -- whose payloads it encrypts; NULL: erased, copies and all
  master     text,                           -- which master key wraps it
  wrapped    text,                           -- base64. NULL: destroyed
  created_at integer NOT NULL,
  erased_at  integer
) WITHOUT ROWID;

CREATE INDEX {data_key_name}_subject ON {data_key} (subject);
