"""Somebody else's table as an inbox."""
