-- Since when an event may be delivered: its age counts from here, wherever it is. A pending row that has it waits for
-- no clock: it was due when it was written or given back, and stays so if the database's clock is set back. NULL: the
-- row waits for `due`, by its own wish or after a failure. Of a claim it is the longest of its events.
ALTER TABLE {pending} ADD COLUMN since timestamptz;

ALTER TABLE {claim} ADD COLUMN since timestamptz;
