"""What people annotate with: arguments and results of the public names in `relaybox`."""

from __future__ import annotations

from .service import AsyncService, Service
from .settings import (
    DeliverySettings,
    GuardSettings,
    InboxSettings,
    IngestSettings,
    OrderSettings,
    OutboxSettings,
    RelaySettings,
    TopicSettings,
)
from .values import Counts, Health

__all__ = [
    "AsyncService",
    "Counts",
    "DeliverySettings",
    "GuardSettings",
    "Health",
    "InboxSettings",
    "IngestSettings",
    "OrderSettings",
    "OutboxSettings",
    "RelaySettings",
    "Service",
    "TopicSettings",
]
