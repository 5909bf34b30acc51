-- Ordered delivery by key: a way from one waiting key to the next, and who has which.

CREATE INDEX "{pending_name}_key" ON {pending} (key_hash, seq);

-- A key somebody delivers now, under the token of his claim. While that claim exists the key is his; when it is settled,
-- expired or taken over the key is free. So a lease has no clock of its own: it is renewed and fenced with its claim.
CREATE TABLE {lease} (
  key_hash bigint PRIMARY KEY,
  token    bigint NOT NULL
) WITH (
  autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000,
  autovacuum_analyze_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);
