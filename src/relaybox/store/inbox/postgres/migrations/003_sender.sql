-- A duplicate is the same id of the same sender, and no longer the same id of anybody. `sender` is who sent a message, as
-- its receiver was told: empty where nobody was named. What was drained before has lost its own: '*', a duplicate from
-- any sender, which the row `former` in the meta table tells.

ALTER TABLE {message} RENAME COLUMN source TO sender;

UPDATE {message} SET sender = CASE WHEN payload IS NULL THEN '*' ELSE '' END WHERE sender IS NULL;

ALTER TABLE {message} ALTER COLUMN sender SET DEFAULT '', ALTER COLUMN sender SET NOT NULL;

CREATE UNIQUE INDEX "{message_name}_identity" ON {message} (event_id, sender COLLATE "C");

ALTER TABLE {message} DROP CONSTRAINT "{message_name}_event_id_key";

CREATE OR REPLACE VIEW {seen} AS SELECT event_id, received_at AS seen_at, sender FROM {message};

ALTER VIEW {status} RENAME COLUMN source TO sender;

ALTER VIEW {waiting} RENAME COLUMN source TO sender;

ALTER VIEW {letters} RENAME COLUMN source TO sender;

INSERT INTO {meta} (name, value) SELECT 'former', 'true' WHERE EXISTS (SELECT 1 FROM {seen} WHERE sender = '*');
