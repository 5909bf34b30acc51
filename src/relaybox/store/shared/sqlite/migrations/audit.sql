-- What operators changed: a row is written in the transaction of its change.
CREATE TABLE {audit} (
  id      integer PRIMARY KEY AUTOINCREMENT,
  at      integer NOT NULL,
  actor   text    NOT NULL,
  verb    text    NOT NULL,
  what    text    NOT NULL,
  changed integer,                -- how many. NULL where that means nothing
  reason  text    NOT NULL
);
