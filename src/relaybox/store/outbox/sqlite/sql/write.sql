-- name: outbox.write.one -> rows
INSERT INTO {event} ({event_fields}, deliver_at, created_at)
VALUES (:event_id, :event_type, :aggregate_type, :aggregate_id, :tenant_id, :content_type,
        :payload, :headers, :occurred_at, :deliver_at, {clock})
RETURNING seq

-- name: outbox.write.many -> rows
-- The same for a batch. json_each numbers its elements, ORDER BY keeps the list order, and substr cuts each
-- payload out of the one BLOB by bytes (and says NULL when that is empty as a whole).
INSERT INTO {event} ({event_fields}, deliver_at, created_at)
SELECT json_extract(value, '$.event_id'), json_extract(value, '$.event_type'),
       json_extract(value, '$.aggregate_type'), json_extract(value, '$.aggregate_id'),
       json_extract(value, '$.tenant_id'), json_extract(value, '$.content_type'),
       coalesce(substr(:payloads, json_extract(value, '$.start'), json_extract(value, '$.size')), x''),
       json_extract(value, '$.headers'), json_extract(value, '$.occurred_at'),
       json_extract(value, '$.deliver_at'), {clock}
FROM json_each(:rows) WHERE true ORDER BY key
RETURNING seq

-- name: outbox.write.pending -> count
-- A delayed event is never claimed by its writer: nobody would deliver it when its time comes.
INSERT INTO {pending} (seq, due, key_hash, token, owner, attempts, claimed_at, since, tenant)
SELECT seq, coalesce(deliver_at, {clock} + {lease_time}), key_hash,
       CASE WHEN deliver_at IS NULL THEN :token END,
       CASE WHEN deliver_at IS NULL THEN :owner END,
       CASE WHEN deliver_at IS NULL THEN :attempts ELSE 0 END,
       CASE WHEN deliver_at IS NULL AND :owner IS NOT NULL THEN {clock} END,
       CASE WHEN deliver_at IS NULL THEN {clock} END, coalesce(tenant, '')
FROM (SELECT json_extract(value, '$.seq') AS seq, json_extract(value, '$.key_hash') AS key_hash,
             json_extract(value, '$.deliver_at') AS deliver_at, json_extract(value, '$.tenant') AS tenant
      FROM json_each(:rows))

-- name: outbox.write.under_way -> rows
-- The transaction that asks has waited for the only one that could write.
SELECT 1 FROM {event} WHERE event_id {in_ids} LIMIT 1
