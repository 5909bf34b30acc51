-- name: outbox.shard.renew -> count
UPDATE {shard} SET until = {clock} + {ttl} WHERE owner = :owner AND {lasting}
