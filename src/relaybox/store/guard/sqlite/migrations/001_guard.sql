-- One row per message and consumer. Without done_at it is in progress and `until` ends the lease; with it the
-- message was handled and `until` is when the mark may be forgotten. Times are microseconds since 1970 UTC.

CREATE TABLE {guard} (
  consumer varchar(64)  NOT NULL,
  event_id varchar(255) NOT NULL,
  token    integer      NOT NULL,               -- who holds it: renewing, finishing and deleting must present it
  until    integer      NOT NULL,
  done_at  integer,
  PRIMARY KEY (consumer, event_id)
) WITHOUT ROWID;

CREATE INDEX {guard_name}_until ON {guard} (until);
