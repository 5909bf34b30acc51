"""Topics: an outbox's events fanned out to groups, on logs that are never updated. PostgreSQL only."""

from .backfill import Backfill
from .start import StartFrom

__all__ = ["Backfill", "StartFrom"]
