-- Ordered delivery by key: a way from one waiting key to the next, and who has which.
-- MySQL cannot say IF NOT EXISTS of an index, and a migration that was cut must run again: hence the detour.

SET @relaybox = (
  SELECT CASE WHEN count(*) > 0 THEN 'DO 0' ELSE 'ALTER TABLE {pending} ADD KEY {pending_name}_key (key_hash, seq)' END
  FROM information_schema.statistics
  WHERE table_schema = coalesce(nullif('{namespace}', ''), database())
    AND table_name = '{pending_name}' AND index_name = '{pending_name}_key');

PREPARE relaybox FROM @relaybox;

EXECUTE relaybox;

DEALLOCATE PREPARE relaybox;

-- A key somebody delivers now, under the token of his claim. While a claimed row of the key has that token and its lease
-- has not ended, the key is his. So a lease has no clock of its own: it is renewed and fenced with its claim.
CREATE TABLE IF NOT EXISTS {lease} (
  key_hash bigint NOT NULL PRIMARY KEY,
  token    bigint NOT NULL
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
