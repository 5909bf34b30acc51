"""The outbox: events written with the business rows, delivered to listeners, retried, dead-lettered, purged."""

from .dead import AsyncDeadLetters, DeadLetters
from .outbox import AsyncOutbox, Outbox

__all__ = ["AsyncDeadLetters", "AsyncOutbox", "DeadLetters", "Outbox"]
