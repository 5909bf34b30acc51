-- What a topic's tracking costs. Counters: two readings make a rate.

-- name: topic.measure.log -> rows
SELECT clock_timestamp(), CASE WHEN q.is_called THEN q.last_value ELSE 0 END,
       (SELECT count(*) FROM {group} WHERE topic_id = :topic AND state IN ('active', 'paused')),
       coalesce(sum(s.n_tup_ins), 0)::bigint, coalesce(sum(s.n_tup_del), 0)::bigint
FROM {log_seq} q LEFT JOIN pg_partition_tree(to_regclass('{log}')) i ON i.isleaf
LEFT JOIN pg_stat_user_tables s ON s.relid = i.relid
GROUP BY q.is_called, q.last_value

-- name: topic.measure.ticks -> rows
-- Numbers drawn between the newest tick and the oldest of the last ten minutes, and the seconds between the two.
SELECT max(ceil) - min(ceil), extract(epoch FROM max(at) - min(at))::float8
FROM {tick} WHERE topic_id = :topic AND tick > 0 AND at > {clock} - interval '10 minutes'

-- name: topic.measure.marks -> rows
SELECT s.n_tup_upd, s.n_dead_tup, s.n_live_tup,
       (SELECT {clock} - least(greatest(m.created_at, {first_time}), {last_time}) FROM {mark} m WHERE m.completed_at IS NULL
        ORDER BY m.seq LIMIT 1),
       (SELECT n_live_tup FROM pg_stat_user_tables WHERE relid = to_regclass('{ack}'))
FROM pg_stat_user_tables s WHERE s.relid = to_regclass('{mark}')

-- name: topic.measure.io -> rows
-- Bytes of WAL, and of data pages read and written, by the whole server.
SELECT (pg_current_wal_lsn() - '0/0')::bigint,
       ((SELECT sum(blks_read) FROM pg_stat_database) + b.buffers_checkpoint + b.buffers_clean + b.buffers_backend)::bigint
       * current_setting('block_size')::bigint
FROM pg_stat_bgwriter b

-- name: topic.measure.io_views -> rows
-- From PostgreSQL 17 on the same figures are elsewhere.
SELECT (pg_current_wal_lsn() - '0/0')::bigint,
       (SELECT sum(coalesce(reads, 0) + coalesce(writes, 0)) FROM pg_stat_io WHERE object = 'relation')::bigint
       * current_setting('block_size')::bigint

-- name: topic.measure.fetch -> rows
-- What a reader does: a page of the newest events of one shard.
SELECT l.seq, l.payload FROM {log} l
WHERE l.shard = :shard AND l.seq > (SELECT last_value - :span FROM {log_seq}) ORDER BY l.seq LIMIT 100

-- name: topic.measure.queue -> rows
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {queue_seq}
