"""The outbox: events written with the business rows, delivered to listeners, retried, dead-lettered, purged."""

from .dead import AsyncDeadLetters, DeadLetters
from .deliver import Interceptor
from .listeners import Listeners
from .outbox import AsyncOutbox, Outbox
from .write import WriterHook

__all__ = [
    "AsyncDeadLetters",
    "AsyncOutbox",
    "DeadLetters",
    "Interceptor",
    "Listeners",
    "Outbox",
    "WriterHook",
]
