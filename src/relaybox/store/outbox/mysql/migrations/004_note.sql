-- What people should know of a process: that the broker it sends to is away, say.

SET @relaybox = (
  SELECT CASE WHEN count(*) > 0 THEN 'DO 0' ELSE 'ALTER TABLE {instance} ADD COLUMN note varchar(200)' END
  FROM information_schema.columns
  WHERE table_schema = coalesce(nullif('{namespace}', ''), database())
    AND table_name = '{instance_name}' AND column_name = 'note');

PREPARE relaybox FROM @relaybox;

EXECUTE relaybox;

DEALLOCATE PREPARE relaybox;
