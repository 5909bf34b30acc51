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
from .values import AuditEntry, Counts, Health, Progress

if TYPE_CHECKING:
    from .maintenance import Report
    from .relay import Preview
    from .store.topics import Lag
    from .topics.advise import Advice
    from .topics.batch import AsyncBatch, Batch
    from .topics.consumer import AsyncConsumer, Consumer
    from .topics.group import AsyncGroup, Group
    from .topics.info import GroupInfo, MemberInfo, TopicInfo
    from .topics.move import MovePlan
    from .topics.producer import AsyncProducer, Producer
    from .topics.topics import AsyncTopics, Topics

__getattr__ = later(
    __name__,
    {
        "Advice": "topics.advise",
        "Lag": "store.topics",
        "MovePlan": "topics.move",
        "Preview": "relay",
        "Report": "maintenance",
        **dict.fromkeys(("AsyncBatch", "Batch"), "topics.batch"),
        **dict.fromkeys(("AsyncConsumer", "Consumer"), "topics.consumer"),
        **dict.fromkeys(("AsyncGroup", "Group"), "topics.group"),
        **dict.fromkeys(("AsyncProducer", "Producer"), "topics.producer"),
        **dict.fromkeys(("AsyncTopics", "Topics"), "topics.topics"),
        **dict.fromkeys(("GroupInfo", "MemberInfo", "TopicInfo"), "topics.info"),
    },
)

__all__ = [
    "AdminSettings",
    "Advice",
    "AsyncBatch",
    "AsyncConsumer",
    "AsyncGroup",
    "AsyncHandle",
    "AsyncProducer",
    "AsyncService",
    "AsyncTopics",
    "AsyncTransaction",
    "Audit",
    "AuditEntry",
    "Batch",
    "Consumer",
    "Counts",
    "DeliverySettings",
    "Group",
    "GroupInfo",
    "GuardSettings",
    "Handle",
    "Health",
    "InboxSettings",
    "IngestSettings",
    "Lag",
    "MemberInfo",
    "MovePlan",
    "OrderSettings",
    "OutboxSettings",
    "Preview",
    "Producer",
    "Progress",
    "Reading",
    "RelaySettings",
    "Report",
    "Service",
    "TopicInfo",
    "TopicSettings",
    "Topics",
    "Transaction",
]
