-- name: inbox.accept.former -> rows
SELECT s.event_id
FROM JSON_TABLE(CONVERT(:event_ids USING utf8mb4), '$[*]' COLUMNS (
  event_id varchar(255) {text} PATH '$' ERROR ON ERROR)) s
STRAIGHT_JOIN {seen} i ON i.event_id = CAST(s.event_id AS binary) AND i.sender = '*'

-- name: inbox.accept.seen -> count
-- Waits for a transaction that has inserted the same id of the same sender and not ended: committed, ours is a duplicate;
-- rolled back, it is new. Ids come sorted, so that no two batches wait for each other. What else IGNORE would forgive (an id that is
-- too long) ERROR ON ERROR refuses.
INSERT IGNORE INTO {seen} (event_id, sender, token, seen_at)
SELECT CAST(s.event_id AS binary), :sender, :token, {clock}
FROM JSON_TABLE(CONVERT(:event_ids USING utf8mb4), '$[*]' COLUMNS (
  ord      FOR ORDINALITY,
  event_id varchar(255) {text} PATH '$' ERROR ON ERROR)) s
ORDER BY s.ord

-- name: inbox.accept.new -> rows
SELECT s.event_id
FROM JSON_TABLE(CONVERT(:event_ids USING utf8mb4), '$[*]' COLUMNS (
  event_id varchar(255) {text} PATH '$' ERROR ON ERROR)) s
STRAIGHT_JOIN {seen} i ON i.event_id = CAST(s.event_id AS binary) AND i.sender = :sender AND i.token = :token

-- name: inbox.accept.message -> count
-- ORDER BY gives the numbers in list order. Times come as text and are cast here, because the two servers disagree on
-- datetimes inside JSON. ERROR ON ERROR: the default is a silent NULL for text that does not fit.
INSERT INTO {message} ({event_fields}, sender, received_at)
SELECT r.event_id, r.event_type, r.aggregate_type, r.aggregate_id, r.tenant_id, r.content_type,
       from_base64(r.payload), r.headers, CAST(r.occurred_at AS datetime(6)), CONVERT(:sender USING utf8mb4), {clock}
FROM JSON_TABLE({rows}, '$[*]' COLUMNS (
  ord            FOR ORDINALITY,
  event_id       varchar(255) {text} PATH '$.event_id' ERROR ON ERROR,
  event_type     varchar(255) {text} PATH '$.event_type' ERROR ON ERROR,
  aggregate_type varchar(255) {text} PATH '$.aggregate_type' ERROR ON ERROR,
  aggregate_id   varchar(255) {text} PATH '$.aggregate_id' ERROR ON ERROR,
  tenant_id      varchar(255) {text} PATH '$.tenant_id' ERROR ON ERROR,
  content_type   varchar(255) {text} PATH '$.content_type' ERROR ON ERROR,
  headers        mediumtext   {text} PATH '$.headers' ERROR ON ERROR,
  occurred_at    varchar(26)  {text} PATH '$.occurred_at' ERROR ON ERROR,
  payload        longtext     {text} PATH '$.payload' ERROR ON ERROR)) r
ORDER BY r.ord

-- name: inbox.accept.numbers -> rows
-- The newest comes last: of an id that was forgotten there may be an older message. A SELECT of its own, because an
-- INSERT … SELECT from this table would lock the gaps between ids and let nobody else accept until our commit.
SELECT m.event_id, m.seq
FROM JSON_TABLE(CONVERT(:event_ids USING utf8mb4), '$[*]' COLUMNS (
  event_id varchar(255) {text} PATH '$' ERROR ON ERROR)) s
STRAIGHT_JOIN {message} m ON m.event_id = s.event_id AND CAST(m.sender AS binary) = :sender
ORDER BY m.seq

-- name: inbox.accept.pending -> count
INSERT INTO {pending} (seq, due, key_hash, position, priority, attempts)
SELECT r.seq, {clock}, r.key_hash, r.position, r.priority, 0
FROM JSON_TABLE({rows}, '$[*]' COLUMNS (seq bigint PATH '$[0]', key_hash bigint PATH '$[1]',
                                        position bigint PATH '$[2]', priority smallint PATH '$[3]')) r
