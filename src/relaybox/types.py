"""What people annotate with: arguments and results of the public names in `relaybox`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .audit import Audit
from .brokers.parse import Reading
from .drivers.spi import AsyncHandle, Handle
from .later import later
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

if TYPE_CHECKING:
    from .maintenance import Report
    from .relay import Preview

__getattr__ = later(__name__, {"Preview": "relay", "Report": "maintenance"})

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
    "Preview",
    "Reading",
    "RelaySettings",
    "Report",
    "Service",
    "TopicSettings",
    "Transaction",
]
