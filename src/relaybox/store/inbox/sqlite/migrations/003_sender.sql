-- A duplicate is the same id of the same sender, and no longer the same id of anybody. `sender` is who sent a message, as
-- its receiver was told: empty where nobody was named. Ids whose messages were purged before have lost their own: '*', a
-- duplicate from any sender, which the row `former` in the meta table tells.

DROP VIEW {status};

DROP VIEW {waiting};

DROP VIEW {letters};

ALTER TABLE {message} ADD COLUMN sender varchar(255) NOT NULL DEFAULT '';

UPDATE {message} SET sender = source WHERE source IS NOT NULL;

ALTER TABLE {message} DROP COLUMN source;

-- A primary key can only be changed by making the table anew.
CREATE TEMP TABLE relaybox_former AS SELECT event_id, seen_at FROM {seen};

DROP TABLE {seen};

CREATE TABLE {seen} (
  event_id varchar(255) NOT NULL,
  sender   varchar(255) NOT NULL,
  seen_at  integer      NOT NULL,
  PRIMARY KEY (event_id, sender)
) WITHOUT ROWID;

INSERT INTO {seen} (event_id, sender, seen_at) SELECT event_id, '*', seen_at FROM temp.relaybox_former;

INSERT OR IGNORE INTO {seen} (event_id, sender, seen_at)
SELECT m.event_id, m.sender, f.seen_at FROM {message} m JOIN temp.relaybox_former f ON f.event_id = m.event_id;

DELETE FROM {seen} WHERE sender = '*' AND event_id IN (SELECT event_id FROM {message});

DROP TABLE temp.relaybox_former;

CREATE INDEX {seen_name}_at ON {seen} (seen_at);

CREATE VIEW {status} AS
SELECT m.seq, m.event_id, m.event_type, m.sender, coalesce(m.aggregate_type, '__GLOBAL__') AS aggregate_type,
       m.aggregate_id, m.tenant_id, coalesce(m.content_type, 'application/json') AS content_type,
       m.payload, m.headers,
       strftime('%Y-%m-%d %H:%M:%f', m.occurred_at / 1000000.0, 'unixepoch') AS occurred_at,
       strftime('%Y-%m-%d %H:%M:%f', m.received_at / 1000000.0, 'unixepoch') AS received_at,
       CASE WHEN d.seq IS NOT NULL THEN 'dead' WHEN p.seq IS NULL THEN 'processed' WHEN p.held THEN 'held'
            WHEN p.owner IS NOT NULL THEN 'claimed' WHEN p.attempts > 0 THEN 'retry' ELSE 'pending' END AS status,
       strftime('%Y-%m-%d %H:%M:%f', f.processed_at / 1000000.0, 'unixepoch') AS processed_at,
       coalesce(p.attempts, d.attempts, f.attempts) AS attempts,
       coalesce(p.last_error, d.last_error) AS last_error,
       strftime('%Y-%m-%d %H:%M:%f', d.dead_at / 1000000.0, 'unixepoch') AS dead_at, p.position,
       CASE WHEN p.owner IS NULL AND NOT p.held
            THEN strftime('%Y-%m-%d %H:%M:%f', p.due / 1000000.0, 'unixepoch') END AS due,
       i.name AS locked_by
FROM {message} m
LEFT JOIN {pending} p ON p.seq = m.seq
LEFT JOIN {dead} d ON d.seq = m.seq
LEFT JOIN {done} f ON f.seq = m.seq
LEFT JOIN {instance} i ON i.id = p.owner;

CREATE VIEW {waiting} AS
SELECT m.seq, m.event_id, m.event_type, m.sender, m.aggregate_id,
       strftime('%Y-%m-%d %H:%M:%f', m.received_at / 1000000.0, 'unixepoch') AS received_at,
       p.position, p.priority, p.held, p.attempts, p.last_error,
       CASE WHEN p.owner IS NULL AND NOT p.held
            THEN strftime('%Y-%m-%d %H:%M:%f', p.due / 1000000.0, 'unixepoch') END AS due
FROM {pending} p JOIN {message} m ON m.seq = p.seq;

CREATE VIEW {letters} AS
SELECT m.seq, m.event_id, m.event_type, m.sender, m.aggregate_id,
       strftime('%Y-%m-%d %H:%M:%f', m.received_at / 1000000.0, 'unixepoch') AS received_at,
       d.position, d.attempts, d.last_error,
       strftime('%Y-%m-%d %H:%M:%f', d.dead_at / 1000000.0, 'unixepoch') AS dead_at
FROM {dead} d JOIN {message} m ON m.seq = d.seq;

INSERT INTO {meta} (name, value) SELECT 'former', 'true' WHERE EXISTS (SELECT 1 FROM {seen} WHERE sender = '*');
