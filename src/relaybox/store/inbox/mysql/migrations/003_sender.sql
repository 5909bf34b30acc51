-- A duplicate is the same id of the same sender, and no longer the same id of anybody. `sender` is who sent a message, as
-- its receiver was told: empty where nobody was named. Ids whose messages were purged before have lost their own: '*', a
-- duplicate from any sender, which the row `former` in the meta table tells.
-- Every statement may run twice: MySQL commits DDL by itself, and a migration may be cut in the middle.

SET @relaybox = IF(
  EXISTS (SELECT 1 FROM information_schema.columns c
          JOIN information_schema.tables t ON t.table_schema = c.table_schema AND t.table_name = c.table_name
          WHERE c.table_schema = coalesce(nullif('{namespace}', ''), database()) AND c.table_name = '{message_name}'
            AND c.column_name = 'source' AND t.table_type = 'BASE TABLE'),
  'UPDATE {message} SET source = '''' WHERE source IS NULL',
  'DO 0');

PREPARE relaybox FROM @relaybox;

EXECUTE relaybox;

SET @relaybox = IF(
  EXISTS (SELECT 1 FROM information_schema.columns c
          JOIN information_schema.tables t ON t.table_schema = c.table_schema AND t.table_name = c.table_name
          WHERE c.table_schema = coalesce(nullif('{namespace}', ''), database()) AND c.table_name = '{message_name}'
            AND c.column_name = 'source' AND t.table_type = 'BASE TABLE'),
  'ALTER TABLE {message} CHANGE COLUMN source sender varchar(255) NOT NULL DEFAULT ''''',
  'DO 0');

PREPARE relaybox FROM @relaybox;

EXECUTE relaybox;

-- As bytes, for the reason of the ids.
SET @relaybox = IF(
  EXISTS (SELECT 1 FROM information_schema.columns
          WHERE table_schema = coalesce(nullif('{namespace}', ''), database()) AND table_name = '{seen_name}'
            AND column_name = 'sender'),
  'DO 0',
  'ALTER TABLE {seen} ADD COLUMN sender varbinary(1020) NOT NULL DEFAULT ''*'' AFTER event_id,
     DROP PRIMARY KEY, ADD PRIMARY KEY (event_id, sender)');

PREPARE relaybox FROM @relaybox;

EXECUTE relaybox;

DEALLOCATE PREPARE relaybox;

INSERT IGNORE INTO {seen} (event_id, sender, token, seen_at)
SELECT s.event_id, CAST(m.sender AS binary), s.token, s.seen_at
FROM {message} m STRAIGHT_JOIN {seen} s ON s.event_id = CAST(m.event_id AS binary) AND s.sender = '*';

DELETE s FROM {message} m STRAIGHT_JOIN {seen} s ON s.event_id = CAST(m.event_id AS binary) AND s.sender = '*';

CREATE OR REPLACE VIEW {status} AS
SELECT m.seq, m.event_id, m.event_type, m.sender, coalesce(m.aggregate_type, '__GLOBAL__') AS aggregate_type,
       m.aggregate_id, m.tenant_id, coalesce(m.content_type, 'application/json') AS content_type,
       m.payload, m.headers, m.occurred_at, m.received_at,
       CASE WHEN d.seq IS NOT NULL THEN 'dead' WHEN p.seq IS NULL THEN 'processed' WHEN p.held THEN 'held'
            WHEN p.owner IS NOT NULL THEN 'claimed' WHEN p.attempts > 0 THEN 'retry' ELSE 'pending' END AS status,
       f.processed_at, coalesce(p.attempts, d.attempts, f.attempts) AS attempts,
       coalesce(p.last_error, d.last_error) AS last_error, d.dead_at, p.position,
       CASE WHEN p.owner IS NULL AND NOT p.held THEN p.due END AS due, i.name AS locked_by
FROM {message} m
LEFT JOIN {pending} p ON p.seq = m.seq
LEFT JOIN {dead} d ON d.seq = m.seq
LEFT JOIN {done} f ON f.seq = m.seq
LEFT JOIN {instance} i ON i.id = p.owner;

CREATE OR REPLACE VIEW {waiting} AS
SELECT m.seq, m.event_id, m.event_type, m.sender, m.aggregate_id, m.received_at, p.position, p.priority, p.held,
       p.attempts, p.last_error, CASE WHEN p.owner IS NULL AND NOT p.held THEN p.due END AS due
FROM {pending} p JOIN {message} m ON m.seq = p.seq;

CREATE OR REPLACE VIEW {letters} AS
SELECT m.seq, m.event_id, m.event_type, m.sender, m.aggregate_id, m.received_at, d.position, d.attempts,
       d.last_error, d.dead_at
FROM {dead} d JOIN {message} m ON m.seq = d.seq;

INSERT IGNORE INTO {meta} (name, value) SELECT 'former', 'true' FROM {seen} WHERE sender = '*' LIMIT 1;
