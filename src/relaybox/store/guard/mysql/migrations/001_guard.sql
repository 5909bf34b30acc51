-- One row per message and consumer. Without done_at it is in progress and `until` ends the lease; with it the
-- message was handled and `until` is when the mark may be forgotten. Times are UTC, names are UTF-8 bytes.

CREATE TABLE IF NOT EXISTS {guard} (
  consumer varbinary(256)  NOT NULL,
  event_id varbinary(1020) NOT NULL,
  token    bigint          NOT NULL,            -- who holds it: renewing, finishing and deleting must present it
  until    datetime(6)     NOT NULL,
  done_at  datetime(6),
  PRIMARY KEY (consumer, event_id),
  KEY {guard_name}_until (until)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
