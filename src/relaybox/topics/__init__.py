"""Topics: an outbox's events fanned out to groups, on logs that are never updated. PostgreSQL only."""

from .start import StartFrom

__all__ = ["StartFrom"]
