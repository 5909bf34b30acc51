-- A topic's log: append-only, partitioned by time, never updated. Queries here are compiled for one topic: {log} is its
-- table, {log_seq} its sequence, {mark} its completion marks.

-- name: topic.log.create -> count
CREATE TABLE {log} (
  seq            bigint       NOT NULL,
  xid            xid8         NOT NULL DEFAULT pg_current_xact_id(),
  shard          smallint     NOT NULL,
  event_id       text         COLLATE "C" NOT NULL CHECK (length(event_id) <= 36),
  event_type     text         NOT NULL CHECK (length(event_type) <= 128),
  aggregate_type text CHECK (length(aggregate_type) <= 64),
  aggregate_id   text CHECK (length(aggregate_id) <= 128),
  tenant_id      text CHECK (length(tenant_id) <= 64),
  content_type   text CHECK (length(content_type) <= 128),
  payload        bytea        NOT NULL,
  headers        text,
  occurred_at    timestamptz  NOT NULL,
  created_at     timestamptz  NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT "{log_name}_limits" CHECK (
    seq >= 1 AND event_id <> '' AND event_type <> ''
    AND octet_length(payload) <= 1048576 AND octet_length(headers) <= 50000
    AND least(occurred_at, created_at) >= '0001-01-01 00:00+00'
    AND greatest(occurred_at, created_at) < '10000-01-01 00:00+00')
) PARTITION BY RANGE (created_at)

-- name: topic.log.sequence -> count
-- Without a cache: a number must not be drawn before its transaction has its own.
CREATE SEQUENCE {log_seq} OWNED BY {log}.seq CACHE 1

-- name: topic.log.by_shard -> count
CREATE INDEX "{log_name}_shard" ON {log} (shard, seq)

-- name: topic.log.by_xid -> count
-- For what was committed late: the events of a transaction that a tick saw still open.
CREATE INDEX "{log_name}_xid" ON {log} (xid, shard, seq)

-- name: topic.log.rest -> count
-- The net under the partitions: nobody's insert fails because one is missing.
CREATE TABLE {log_part} PARTITION OF {log} DEFAULT {log_spread}

-- name: topic.log.taken -> rows
-- Tables that bear the names of a new topic's: somebody else's, and not to be shared.
SELECT name FROM unnest(ARRAY['{log}', '{queue_event}', '{queue_migration}']) AS name WHERE to_regclass(name) IS NOT NULL

-- name: topic.log.drop -> count
-- With its partitions, indexes and sequence.
DROP TABLE IF EXISTS {log}, {mark}, {ack}

-- name: topic.log.drop_view -> count
DROP VIEW IF EXISTS {queue_status}

-- name: topic.log.drop_queue -> count
DROP TABLE IF EXISTS {queue_event}, {queue_pending}, {queue_claim}, {queue_dead}, {queue_instance}, {queue_shard},
                     {queue_hold}, {queue_lease}, {queue_audit}, {queue_migration}

-- name: topic.log.drop_sequence -> count
DROP SEQUENCE IF EXISTS {queue_seq}

-- name: topic.log.drop_hash -> count
DROP FUNCTION IF EXISTS {queue_hash}(text)
