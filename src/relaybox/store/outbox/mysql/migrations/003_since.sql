-- Since when an event may be delivered: its age counts from here, also while it is claimed. A waiting row that has it
-- waits for no clock: it was due when it was written or given back, and stays so if the clock is set back. NULL: the row
-- waits for `due`, by its own wish or after a failure.
-- MySQL cannot say IF NOT EXISTS of a column, and a migration that was cut must run again: hence the detour.

SET @relaybox = (
  SELECT CASE WHEN count(*) > 0 THEN 'DO 0' ELSE 'ALTER TABLE {pending} ADD COLUMN since datetime(6)' END
  FROM information_schema.columns
  WHERE table_schema = coalesce(nullif('{namespace}', ''), database())
    AND table_name = '{pending_name}' AND column_name = 'since');

PREPARE relaybox FROM @relaybox;

EXECUTE relaybox;

DEALLOCATE PREPARE relaybox;
