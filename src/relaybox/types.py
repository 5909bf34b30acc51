"""What people annotate with: arguments and results of the public names in `relaybox`."""

from __future__ import annotations

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

__all__ = [
    "DeliverySettings",
    "GuardSettings",
    "InboxSettings",
    "IngestSettings",
    "OrderSettings",
    "OutboxSettings",
    "RelaySettings",
    "TopicSettings",
]
