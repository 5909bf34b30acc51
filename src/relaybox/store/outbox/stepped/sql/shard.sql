-- name: outbox.shard.count -> rows
SELECT count(*) FROM {shard} WHERE shard < :shards

-- name: outbox.shard.owned -> rows
SELECT shard, term FROM {shard} WHERE owner = :owner AND {lasting}
