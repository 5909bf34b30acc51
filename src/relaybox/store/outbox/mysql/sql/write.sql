-- name: outbox.write.many -> count
-- One round trip for one event or a thousand. ORDER BY gives the numbers in list order. Times come as text
-- and are cast here, because the two servers disagree on datetimes inside JSON. ERROR ON ERROR: the default
-- is a silent NULL for text that does not fit.
INSERT INTO {event} ({event_fields}, deliver_at, created_at)
SELECT r.event_id, r.event_type, r.aggregate_type, r.aggregate_id, r.tenant_id, r.content_type,
       from_base64(r.payload), r.headers, CAST(r.occurred_at AS datetime(6)), CAST(r.deliver_at AS datetime(6)),
       {clock}
FROM JSON_TABLE({rows}, '$[*]' COLUMNS (
  ord            FOR ORDINALITY,
  event_id       varchar(36)  {text} PATH '$.event_id' ERROR ON ERROR,
  event_type     varchar(128) {text} PATH '$.event_type' ERROR ON ERROR,
  aggregate_type varchar(64)  {text} PATH '$.aggregate_type' ERROR ON ERROR,
  aggregate_id   varchar(128) {text} PATH '$.aggregate_id' ERROR ON ERROR,
  tenant_id      varchar(64)  {text} PATH '$.tenant_id' ERROR ON ERROR,
  content_type   varchar(128) {text} PATH '$.content_type' ERROR ON ERROR,
  headers        mediumtext   {text} PATH '$.headers' ERROR ON ERROR,
  occurred_at    varchar(26)  {text} PATH '$.occurred_at' ERROR ON ERROR,
  deliver_at     varchar(26)  {text} PATH '$.deliver_at' ERROR ON ERROR,
  payload        longtext     {text} PATH '$.payload' ERROR ON ERROR)) r
ORDER BY r.ord

-- name: outbox.write.numbers -> rows
SELECT e.event_id, e.seq FROM {ids} STRAIGHT_JOIN {event} e ON e.event_id = s.event_id

-- name: outbox.write.pending -> count
-- A delayed event is never claimed by its writer: nobody would deliver it when its time comes.
INSERT INTO {pending} (seq, due, key_hash, token, owner, attempts, claimed_at, since, tenant)
SELECT r.seq, coalesce(CAST(r.deliver_at AS datetime(6)), {clock} + {lease_time}), r.key_hash,
       CASE WHEN r.deliver_at IS NULL THEN :token END,
       CASE WHEN r.deliver_at IS NULL THEN :owner END,
       CASE WHEN r.deliver_at IS NULL THEN :attempts ELSE 0 END,
       CASE WHEN r.deliver_at IS NULL AND :owner IS NOT NULL THEN {clock} END,
       CASE WHEN r.deliver_at IS NULL THEN {clock} END, coalesce(r.tenant, '')
FROM JSON_TABLE({rows}, '$[*]' COLUMNS (
  seq        bigint PATH '$.seq',
  key_hash   bigint PATH '$.key_hash',
  deliver_at varchar(26) {text} PATH '$.deliver_at' ERROR ON ERROR,
  tenant     varchar(64) {text} PATH '$.tenant' ERROR ON ERROR)) r

-- name: outbox.write.under_way -> rows
-- A locking read waits for the transaction that has inserted one of these ids and not ended.
SELECT e.event_id FROM {ids} STRAIGHT_JOIN {event} e ON e.event_id = s.event_id LOCK IN SHARE MODE

-- name: outbox.write.stored -> rows
-- Which of these ids are stored: the answer to a commit whose reply was lost.
SELECT e.event_id FROM {ids} STRAIGHT_JOIN {event} e ON e.event_id = s.event_id
