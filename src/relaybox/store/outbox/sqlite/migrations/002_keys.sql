-- Ordered delivery by key: a way from one waiting key to the next.

CREATE INDEX {pending_name}_key ON {pending} (key_hash, seq);
