"""Every error relaybox raises, in one tree.

    RelayboxError
    ├── ConfigError            a setting, URL or name is wrong            (also a ValueError)
    ├── InvalidEvent           an event cannot be stored as given         (also a ValueError)
    │   └── PayloadTooLarge
    ├── NoTransaction          write() outside a transaction
    ├── CommitUnknown          the commit's reply was lost: neither success nor failure
    ├── MissingExtra           an optional package is not installed       (also an ImportError)
    ├── UnsupportedByEngine    this database cannot do that; the message names one that can
    ├── ServiceClosed          used after close()
    ├── StoreError             the database refused
    │   ├── ConnectionLost     retry on a new connection
    │   ├── StoreBusy          lock wait, deadlock, serialization failure: retry the transaction
    │   ├── StoreFull          disk or quota exhausted
    │   ├── DuplicateEvent     an event with this id is stored already
    │   ├── SchemaMissing      run migrate()
    │   ├── SchemaTooNew       this package is older than the tables
    │   └── SchemaDrift        a table is not what the migrations made
    └── DeliveryError          why an event was not delivered
        ├── Unroutable         nobody listens: dead at once
        ├── Undecodable        the stored event cannot be read: dead at once
        ├── Reject             raised by a listener: do not retry, dead letter now
        └── RetryLater         raised by a listener: try again after a delay it names

Messages say what happened, with which value, and what to do. They never contain a payload or a password.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta


class RelayboxError(Exception):
    """Root of the tree: `except RelayboxError` catches all of ours and nothing else."""


class ConfigError(RelayboxError, ValueError):
    pass


class InvalidEvent(RelayboxError, ValueError):
    pass


class PayloadTooLarge(InvalidEvent):
    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"payload is {size:,} bytes, the limit is {limit:,}; store the large part elsewhere and send a reference"
        )
        self.size = size
        self.limit = limit


class NoTransaction(RelayboxError):
    pass


class CommitUnknown(RelayboxError):
    """The connection broke while COMMIT was under way. Ask `resolve(ids)` before writing again."""

    def __init__(self, event_ids: Sequence[str]) -> None:
        super().__init__(
            f"the reply to COMMIT was lost; {len(event_ids)} event(s) may or may not be stored. "
            "Call resolve(error.event_ids) on the outbox before repeating the transaction"
        )
        self.event_ids = tuple(event_ids)


class MissingExtra(RelayboxError, ImportError):
    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs the package {package!r}: pip install 'relaybox[{extra}]'")
        self.extra = extra


class UnsupportedByEngine(RelayboxError):
    pass


class ServiceClosed(RelayboxError):
    pass


class StoreError(RelayboxError):
    pass


class ConnectionLost(StoreError):
    pass


class StoreBusy(StoreError):
    pass


class StoreFull(StoreError):
    pass


class DuplicateEvent(StoreError):
    pass


class SchemaMissing(StoreError):
    pass


class SchemaTooNew(StoreError):
    pass


class SchemaDrift(StoreError):
    pass


class DeliveryError(RelayboxError):
    pass


class Unroutable(DeliveryError):
    pass


class Undecodable(DeliveryError):
    pass


class Reject(DeliveryError):
    """Raise from a listener when trying again cannot help: the event becomes a dead letter now."""


class RetryLater(DeliveryError):
    """Raise from a listener to choose the delay of the next attempt (a Retry-After, say)."""

    def __init__(self, delay: timedelta, reason: str = "the listener asked for a later attempt") -> None:
        super().__init__(reason)
        self.delay = delay
