-- What operators changed: a row is written in the transaction of its change.
CREATE TABLE IF NOT EXISTS {audit} (
  id      bigint       NOT NULL AUTO_INCREMENT PRIMARY KEY,
  at      datetime(6)  NOT NULL,
  actor   varchar(255) NOT NULL,
  verb    varchar(64)  NOT NULL,
  what    varchar(255) NOT NULL,
  changed bigint,                 -- how many. NULL where that means nothing
  reason  text         NOT NULL
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
