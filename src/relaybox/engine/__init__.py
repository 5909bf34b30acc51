"""What runs in the background: the delivery engine, instances, wake-ups. Async only; sync handlers get threads."""
