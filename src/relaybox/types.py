"""What people annotate with: arguments and results of the public names in `relaybox`."""

from __future__ import annotations

from .audit import Audit
from .drivers.spi import AsyncHandle, Handle
from .outbox.transaction import AsyncTransaction, Transaction
from .service import AsyncService, Service
from .settings import (
    AdminSettings,
    DeliverySettings,
    GuardSettings,
    InboxSettings,
    IngestSettings,
    OrderSettings,
    OutboxSettings,
    RelaySettings,
    TopicSettings,
)
from .values import AuditEntry, Counts, Health

__all__ = [
    "AdminSettings",
    "AsyncHandle",
    "AsyncService",
    "AsyncTransaction",
    "Audit",
    "AuditEntry",
    "Counts",
    "DeliverySettings",
    "GuardSettings",
    "Handle",
    "Health",
    "InboxSettings",
    "IngestSettings",
    "OrderSettings",
    "OutboxSettings",
    "RelaySettings",
    "Service",
    "TopicSettings",
    "Transaction",
]
