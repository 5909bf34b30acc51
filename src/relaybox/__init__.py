"""relaybox: transactional messaging on the database you already have."""

from .contracts import Contract, Contracts
from .delivery import Delivery
from .errors import (
    BatchFailed,
    CommitUnknown,
    ConfigError,
    InvalidEvent,
    LeaseLost,
    NotFound,
    NoTransaction,
    Reject,
    RelayboxError,
    RetryLater,
    StoreError,
)
from .event import Event
from .guard import AsyncGuard, Guard
from .hooks import Interceptor, WriterHook
from .listeners import Listeners
from .outbox import AsyncOutbox, Outbox
from .retry import Retry
from .settings import Settings
from .store.outbox.values import BlockedKey, DeadFilter, DeadLetter, Status
from .topic import Topic
from .topics import Backfill, StartFrom

__version__ = "0.1.0"

__all__ = [
    "AsyncGuard",
    "AsyncOutbox",
    "Backfill",
    "BatchFailed",
    "BlockedKey",
    "CommitUnknown",
    "ConfigError",
    "Contract",
    "Contracts",
    "DeadFilter",
    "DeadLetter",
    "Delivery",
    "Event",
    "Guard",
    "Interceptor",
    "InvalidEvent",
    "LeaseLost",
    "Listeners",
    "NotFound",
    "NoTransaction",
    "Outbox",
    "Reject",
    "RelayboxError",
    "Retry",
    "RetryLater",
    "Settings",
    "StartFrom",
    "Status",
    "StoreError",
    "Topic",
    "WriterHook",
]
