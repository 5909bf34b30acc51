-- One row per message and consumer. Without done_at it is in progress and `until` ends the lease; with it the
-- message was handled and `until` is when the mark may be forgotten.

CREATE TABLE {guard} (
  consumer text         COLLATE "C" NOT NULL CHECK (length(consumer) <= 64),
  event_id text         COLLATE "C" NOT NULL CHECK (length(event_id) <= 255),
  token    bigint       NOT NULL,               -- who holds it: renewing, finishing and deleting must present it
  until    timestamptz  NOT NULL,
  done_at  timestamptz,
  PRIMARY KEY (consumer, event_id)
);

CREATE INDEX "{guard_name}_until" ON {guard} (until);
