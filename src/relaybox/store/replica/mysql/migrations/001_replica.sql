-- How far each replicated table is. A row is locked by who changes its table, in the same transaction. Times are UTC.

CREATE TABLE IF NOT EXISTS {position} (
  kept        varbinary(48)  NOT NULL PRIMARY KEY,    -- the table
  feed        varchar(128)   NOT NULL,
  key_columns longtext       NOT NULL,        -- JSON: the names, in order
  types       longtext       NOT NULL,        -- JSON: the feed's columns and their types; {} where nobody said them
  epoch       varchar(64),                    -- NULL: the table has nothing of the feed yet
  n           bigint         NOT NULL,        -- every delta up to this one is in the table
  seq         bigint,                         -- where that one stands in the source's log; NULL: it was not read there
  era         bigint         NOT NULL,        -- a message of this epoch was written then: microseconds since 1970
  by_rows     smallint       NOT NULL,        -- 1: messages of single rows go beyond n, and each row's version is kept
  snapshot    bigint         NOT NULL,        -- the newest snapshot whose rows arrive one by one
  arrived     bigint         NOT NULL,        -- how many of them did
  applied_at  datetime(6)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
