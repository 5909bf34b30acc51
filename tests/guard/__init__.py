"""Guards on real Redis and on all three SQL engines."""
