-- How far each replicated table is. Times are microseconds since 1970 UTC.

CREATE TABLE {position} (
  kept        varchar(48)  NOT NULL PRIMARY KEY,      -- the table
  feed        varchar(128) NOT NULL,
  key_columns text         NOT NULL,          -- JSON: the names, in order
  types       text         NOT NULL,          -- JSON: the feed's columns and their types; {} where nobody said them
  epoch       varchar(64),                    -- NULL: the table has nothing of the feed yet
  n           integer      NOT NULL,          -- every delta up to this one is in the table
  seq         integer,                        -- where that one stands in the source's log; NULL: it was not read there
  era         integer      NOT NULL,          -- a message of this epoch was written then: microseconds since 1970
  by_rows     integer      NOT NULL,          -- 1: messages of single rows go beyond n, and each row's version is kept
  snapshot    integer      NOT NULL,          -- the newest snapshot whose rows arrive one by one
  arrived     integer      NOT NULL,          -- how many of them did
  applied_at  integer
);
