"""relaybox: transactional messaging on the database you already have."""

from typing import TYPE_CHECKING

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
from .feed import Feed
from .guard import AsyncGuard, Guard
from .inbox.inbox import AsyncInbox, Inbox
from .later import later
from .listeners import Listeners
from .outbox import AsyncOutbox, Outbox
from .retry import Retry
from .settings import Settings
from .topic import Topic
from .topics import StartFrom
from .values import ALL, Where

if TYPE_CHECKING:
    from .ingest import AsyncIngest, Ingest
    from .maintenance import AsyncMaintainer, Maintainer, erase
    from .relay import AsyncRelay, Relay
    from .replica import AsyncReplica, Replica
    from .vault import Keyring, Vault
else:  # hidden from type checkers, to which a module with __getattr__ has every name
    __getattr__ = later(
        __name__,
        {
            **dict.fromkeys(("AsyncIngest", "Ingest"), "ingest"),
            **dict.fromkeys(("AsyncMaintainer", "Maintainer", "erase"), "maintenance"),
            **dict.fromkeys(("AsyncRelay", "Relay"), "relay"),
            **dict.fromkeys(("AsyncReplica", "Replica"), "replica"),
            **dict.fromkeys(("Keyring", "Vault"), "vault"),
        },
    )

__version__ = "0.1.0"

__all__ = [
    "ALL",
    "AsyncGuard",
    "AsyncInbox",
    "AsyncIngest",
    "AsyncMaintainer",
    "AsyncOutbox",
    "AsyncRelay",
    "AsyncReplica",
    "BatchFailed",
    "CommitUnknown",
    "ConfigError",
    "Contract",
    "Contracts",
    "Delivery",
    "Event",
    "Feed",
    "Guard",
    "Inbox",
    "Ingest",
    "InvalidEvent",
    "Keyring",
    "LeaseLost",
    "Listeners",
    "Maintainer",
    "NoTransaction",
    "NotFound",
    "Outbox",
    "Reject",
    "Relay",
    "RelayboxError",
    "Replica",
    "Retry",
    "RetryLater",
    "Settings",
    "StartFrom",
    "StoreError",
    "Topic",
    "Vault",
    "Where",
    "erase",
]
