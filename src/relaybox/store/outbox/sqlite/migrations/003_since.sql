-- Since when an event may be delivered: its age counts from here, also while it is claimed. A waiting row that has it
-- waits for no clock: it was due when it was written or given back, and stays so if the clock is set back. NULL: the row
-- waits for `due`, by its own wish or after a failure.
ALTER TABLE {pending} ADD COLUMN since integer;
