-- name: inbox.adopt.map -> count
-- Its id is of their type, down to the collation: a join of the two can use both indexes.
CREATE TABLE IF NOT EXISTS {map} (
  seq       bigint       NOT NULL AUTO_INCREMENT PRIMARY KEY,
  id        {id_type} NOT NULL,
  event_id  varchar(768) {text} NOT NULL,
  token     bigint       NOT NULL,
  picked_at datetime(6)  NOT NULL,
  UNIQUE KEY {map_name}_theirs (id),
  KEY {map_name}_event (event_id),
  KEY {map_name}_token (token)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin

-- name: inbox.adopt.theirs -> count
-- Only ever asked for rows by their ids. FORCE INDEX, because a scan would lock, and wait for, rows of others.
CREATE OR REPLACE ALGORITHM = MERGE SQL SECURITY INVOKER VIEW {theirs} AS
SELECT {their_columns} FROM {their_table} t FORCE INDEX ({their_index})

-- name: inbox.adopt.open -> count
-- For finding what waits, without locks.
CREATE OR REPLACE ALGORITHM = MERGE SQL SECURITY INVOKER VIEW {open} AS
SELECT {their_columns} FROM {their_table} t WHERE t.{their_processed_at} IS NULL

-- name: inbox.adopt.message -> count
CREATE OR REPLACE ALGORITHM = MERGE SQL SECURITY INVOKER VIEW {message} AS
SELECT m.seq, m.event_id, {of_event_type} AS event_type, {by_sender} AS {sender_name}, NULL AS aggregate_type,
       {of_aggregate_id} AS aggregate_id, NULL AS tenant_id, NULL AS content_type, {of_payload} AS payload,
       {of_headers} AS headers, {of_received_at} AS occurred_at, {of_received_at} AS received_at
FROM {map} m JOIN {their_table} t ON t.{their_id} = m.id

-- name: inbox.adopt.stats -> count
CREATE OR REPLACE VIEW {stats} AS
SELECT m.event_type, count(p.seq) AS pending, count(f.seq) AS processed, count(d.seq) AS dead,
       avg(f.waited) AS avg_processing_sec
FROM {message} m
LEFT JOIN {pending} p ON p.seq = m.seq
LEFT JOIN {done} f ON f.seq = m.seq
LEFT JOIN {dead} d ON d.seq = m.seq
GROUP BY m.event_type
