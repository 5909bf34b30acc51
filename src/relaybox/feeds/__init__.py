"""Feeds: results of queries kept as tables, and their changes as events. They stand on topics."""
