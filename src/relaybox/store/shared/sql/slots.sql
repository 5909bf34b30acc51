-- slot: skip_locked
FOR UPDATE SKIP LOCKED

-- slot: for_update
FOR UPDATE

-- slot: greatest
greatest
