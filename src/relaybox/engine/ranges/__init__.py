"""Delivery by ranges of a log: groups."""
