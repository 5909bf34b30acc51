"""relaybox: transactional messaging on the database you already have."""

from .contracts import Contract, Contracts
from .errors import (
    CommitUnknown,
    ConfigError,
    ContractViolation,
    GuardError,
    InProgress,
    InvalidEvent,
    NoTransaction,
    Reject,
    RelayboxError,
    RetryLater,
    StoreError,
)
from .event import AggregateType, Event, EventType
from .idempotency import AsyncGuard, Guard
from .outbox import AsyncOutbox, Interceptor, Listeners, Outbox, WriterHook
from .retry import ExponentialBackoff
from .runtime.delivery import Delivery
from .settings import Settings
from .store.spi import BlockedKey, DeadFilter, DeadLetter, Status

__version__ = "0.1.0"

__all__ = [
    "AggregateType",
    "AsyncGuard",
    "AsyncOutbox",
    "BlockedKey",
    "CommitUnknown",
    "ConfigError",
    "Contract",
    "ContractViolation",
    "Contracts",
    "DeadFilter",
    "DeadLetter",
    "Delivery",
    "Event",
    "EventType",
    "ExponentialBackoff",
    "Guard",
    "GuardError",
    "InProgress",
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
