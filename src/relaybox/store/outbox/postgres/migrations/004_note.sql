-- What people should know of a process: that the broker it sends to is away, say.
ALTER TABLE {instance} ADD COLUMN note varchar(200);
