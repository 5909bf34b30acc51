"""End-to-end flows on real databases: from a caller's transaction to a listener."""
