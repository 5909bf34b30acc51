"""The outbox: events written with the business rows, delivered to listeners, retried, dead-lettered, purged."""

from .outbox import AsyncOutbox, Outbox

__all__ = ["AsyncOutbox", "Outbox"]
