-- name: outbox.write.one -> rows
-- Event and pending row in one statement: one round trip, both or neither.
WITH e AS (
  INSERT INTO {event} ({event_fields}, deliver_at, created_at)
  VALUES (:event_id, :event_type, :aggregate_type, :aggregate_id, :tenant_id, :content_type,
          :payload, :headers, :occurred_at, :deliver_at, {clock})
  RETURNING seq, deliver_at, tenant_id)
INSERT INTO {pending} (seq, due, key_hash, attempts, tenant, since)
SELECT e.seq, coalesce(:deliver_at, c.now), :key_hash::bigint, 0, coalesce(e.tenant_id, ''),
       CASE WHEN e.deliver_at IS NULL THEN c.now END
FROM e, (SELECT {clock} AS now OFFSET 0) c
RETURNING seq

-- name: outbox.write.one_claimed -> rows
-- The hot path: the event belongs to its writer from the start, so no other node can take it meanwhile.
WITH e AS (
  INSERT INTO {event} ({event_fields}, deliver_at, created_at)
  VALUES (:event_id, :event_type, :aggregate_type, :aggregate_id, :tenant_id, :content_type,
          :payload, :headers, :occurred_at, :deliver_at, {clock})
  RETURNING seq)
INSERT INTO {claim} (token, owner, until, claimed_at, items)
SELECT :token::bigint, :owner::integer, {clock} + {lease_time}, {clock}, ARRAY[seq * 65536 + 1]
FROM e
RETURNING items[1] / 65536

-- name: outbox.write.many -> rows
-- The same for a batch given as arrays. Numbers are drawn in list order before anything is inserted,
-- so sorting the returned seq gives the list order back (RETURNING has none).
WITH d AS MATERIALIZED (
  SELECT nextval('{seq}') AS seq, o.*
  FROM (SELECT * FROM unnest({event_arrays}, :deliver_ats::timestamptz[])
        WITH ORDINALITY AS u({event_fields}, deliver_at, ord)
        ORDER BY ord) o),
e AS (
  INSERT INTO {event} (seq, {event_fields}, deliver_at, created_at)
  SELECT seq, {event_fields}, deliver_at, {clock} FROM d),
p AS (
  INSERT INTO {pending} (seq, due, key_hash, attempts, tenant, since)
  SELECT seq, coalesce(deliver_at, :now, clock_timestamp()), {hash}(coalesce(aggregate_id, event_id)), 0,
         coalesce(tenant_id, ''), CASE WHEN deliver_at IS NULL THEN {clock} END FROM d
  WHERE :owner::integer IS NULL OR deliver_at IS NOT NULL),
c AS (
  INSERT INTO {claim} (token, owner, until, claimed_at, items)
  SELECT :token, :owner::integer, {clock} + {lease_time}, {clock}, array_agg(seq * 65536 + 1 ORDER BY seq)
  FROM d WHERE :owner::integer IS NOT NULL AND deliver_at IS NULL HAVING count(*) > 0)
SELECT seq FROM d

-- name: outbox.write.call -> rows
-- The same for a role that may write and nothing else: by the function that `relaybox grants writer` makes of it.
SELECT {write}({event_arrays}, :deliver_ats::timestamptz[])

-- name: outbox.write.numbers -> rows
-- The numbers for a COPY in one array, with the database's time for the due column. Under row-level security the server
-- refuses a COPY.
SELECT array_agg(nextval('{seq}')), {clock}, row_security_active('{event}'::regclass) FROM generate_series(1, :count)

-- name: outbox.write.plain -> rows
-- Writer-only tables (change data capture): the event alone, append-only, no pending row. No NULL for the usual
-- values: other readers do not know what it stands for, and an outbox router cannot route by it.
INSERT INTO {event} ({event_fields}, deliver_at, created_at)
SELECT event_id, event_type, coalesce(aggregate_type, '__GLOBAL__'), aggregate_id, tenant_id,
       coalesce(content_type, 'application/json'), payload, headers, occurred_at, deliver_at, {clock}
FROM unnest({event_arrays}, :deliver_ats::timestamptz[])
  WITH ORDINALITY AS u({event_fields}, deliver_at, ord)
ORDER BY ord
RETURNING seq

-- name: outbox.write.under_way -> rows
-- Who is writing to this outbox or its logs. A COMMIT that waits for a standby or a trigger holds its locks until its
-- events can be seen. Needs no rights.
SELECT DISTINCT l.virtualtransaction
FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND n.nspname = coalesce(nullif('{namespace}', ''), current_schema()) AND starts_with(c.relname, '{event_name}')
