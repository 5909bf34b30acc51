"""Settings in sections, with one path for code, file and environment."""

from __future__ import annotations

from .load import Explained, Loaded, leaves, prefixed, read_file, table_of
from .sections import (
    BATCHES,
    INGEST,
    PREFIXES,
    RELAY,
    VARIABLES,
    AdminSettings,
    DeliverySettings,
    GuardSettings,
    InboxSettings,
    IngestSettings,
    OnExhausted,
    OrderSettings,
    OutboxSettings,
    RelaySettings,
    Settings,
    TopicSettings,
    UnknownTopics,
    explained,
    shard_numbers,
)

__all__ = [
    "BATCHES",
    "INGEST",
    "PREFIXES",
    "RELAY",
    "VARIABLES",
    "AdminSettings",
    "DeliverySettings",
    "Explained",
    "GuardSettings",
    "InboxSettings",
    "IngestSettings",
    "Loaded",
    "OnExhausted",
    "OrderSettings",
    "OutboxSettings",
    "RelaySettings",
    "Settings",
    "TopicSettings",
    "UnknownTopics",
    "explained",
    "leaves",
    "prefixed",
    "read_file",
    "shard_numbers",
    "table_of",
]
