"""relaybox: transactional messaging on the database you already have."""

from .errors import (
    CommitUnknown,
    ConfigError,
    InvalidEvent,
    NoTransaction,
    Reject,
    RelayboxError,
    RetryLater,
    StoreError,
)
from .event import AggregateType, Event, EventType
from .outbox import AsyncOutbox, Interceptor, Listeners, Outbox, WriterHook
from .retry import ExponentialBackoff
from .runtime.delivery import Delivery
from .settings import Settings
from .store.spi import BlockedKey, DeadFilter, DeadLetter, Status

__version__ = "0.1.0"

__all__ = [
    "AggregateType",
    "AsyncOutbox",
    "BlockedKey",
    "CommitUnknown",
    "ConfigError",
    "DeadFilter",
    "DeadLetter",
    "Delivery",
    "Event",
    "EventType",
    "ExponentialBackoff",
    "Interceptor",
    "InvalidEvent",
    "Listeners",
    "NoTransaction",
    "Outbox",
    "Reject",
    "RelayboxError",
    "RetryLater",
    "Settings",
    "Status",
    "StoreError",
    "WriterHook",
]
