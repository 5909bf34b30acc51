"""What people annotate with: arguments and results of the public names in `relaybox`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .audit import Audit
from .brokers.parse import Reading
from .contracts.registry import ContractOptions
from .drivers.spi import AsyncHandle, Handle
from .durations import Duration
from .event import EventOptions
from .feed import FeedSource
from .inbox.tiers import AsyncTieredInbox, TieredInbox
from .later import later
from .listeners import BatchDecorator, Decorator, Listener, ListenerOptions
from .operate import AsyncDeadLetters, AsyncEvents, AsyncKeys, DeadLetters, Events, Keys
from .outbox.transaction import AsyncTransaction, Transaction
from .service import AsyncService, Service
from .settings import (
    AdminSettings,
    DeliverySettings,
    FeedSettings,
    GuardSettings,
    InboxSettings,
    IngestSettings,
    ListenSettings,
    OrderSettings,
    OutboxSettings,
    RelaySettings,
    ReplicaSettings,
    TenantSettings,
    TopicSettings,
)
from .store.doctor import Finding
from .store.grants import DatabaseRole
from .store.inbox.adopted.adoption import Adoption, Columns
from .store.inbox.adopted.make import Dropped, InboxInfo
from .store.inbox.claim import Share
from .store.inbox.meta import Retention
from .store.inbox.operate import InboxStatus
from .store.inbox.order import Order, Priority, Tier
from .store.inbox.stats import TypeStats
from .store.instances import Instance
from .store.schema import Migration
from .topic import TopicOptions
from .values import LIMITS, AuditEntry, BlockedKey, Counts, DeadLetter, Health, Limits, Progress, Status, StoredEvent

if TYPE_CHECKING:
    from .feeds.feeds import AsyncFeeds, Feeds
    from .feeds.info import FeedInfo, FeedStatus
    from .maintenance import Erasure, Report
    from .relay import Preview
    from .replica.replica import ReplicaStatus
    from .store.feeds import Drift, Refreshed
    from .store.feeds.schedule import FeedSchedule
    from .store.topics import Lag
    from .topics.advise import Advice
    from .topics.batch import AsyncBatch, Batch
    from .topics.consumer import AsyncConsumer, Consumer
    from .topics.deltas import DeltaRow
    from .topics.group import AsyncGroup, Group
    from .topics.info import GroupInfo, MemberInfo, TopicInfo
    from .topics.move import MovePlan
    from .topics.producer import AsyncProducer, Producer
    from .topics.topics import AsyncTopics, Topics
    from .vault import Kms, MasterKey
else:  # hidden from type checkers, to which a module with __getattr__ has every name
    __getattr__ = later(
        __name__,
        {
            "Advice": "topics.advise",
            "DeltaRow": "topics.deltas",
            "FeedSchedule": "store.feeds.schedule",
            "Lag": "store.topics",
            "MovePlan": "topics.move",
            "Preview": "relay",
            "ReplicaStatus": "replica.replica",
            **dict.fromkeys(("Drift", "Refreshed"), "store.feeds"),
            **dict.fromkeys(("AsyncFeeds", "Feeds"), "feeds.feeds"),
            **dict.fromkeys(("FeedInfo", "FeedStatus"), "feeds.info"),
            **dict.fromkeys(("Kms", "MasterKey"), "vault"),
            **dict.fromkeys(("Erasure", "Report"), "maintenance"),
            **dict.fromkeys(("AsyncBatch", "Batch"), "topics.batch"),
            **dict.fromkeys(("AsyncConsumer", "Consumer"), "topics.consumer"),
            **dict.fromkeys(("AsyncGroup", "Group"), "topics.group"),
            **dict.fromkeys(("AsyncProducer", "Producer"), "topics.producer"),
            **dict.fromkeys(("AsyncTopics", "Topics"), "topics.topics"),
            **dict.fromkeys(("GroupInfo", "MemberInfo", "TopicInfo"), "topics.info"),
        },
    )

__all__ = [
    "LIMITS",
    "AdminSettings",
    "Adoption",
    "Advice",
    "AsyncBatch",
    "AsyncConsumer",
    "AsyncDeadLetters",
    "AsyncEvents",
    "AsyncFeeds",
    "AsyncGroup",
    "AsyncHandle",
    "AsyncKeys",
    "AsyncProducer",
    "AsyncService",
    "AsyncTieredInbox",
    "AsyncTopics",
    "AsyncTransaction",
    "Audit",
    "AuditEntry",
    "Batch",
    "BatchDecorator",
    "BlockedKey",
    "Columns",
    "Consumer",
    "ContractOptions",
    "Counts",
    "DatabaseRole",
    "DeadLetter",
    "DeadLetters",
    "Decorator",
    "DeliverySettings",
    "DeltaRow",
    "Drift",
    "Dropped",
    "Duration",
    "Erasure",
    "EventOptions",
    "Events",
    "FeedInfo",
    "FeedSchedule",
    "FeedSettings",
    "FeedSource",
    "FeedStatus",
    "Feeds",
    "Finding",
    "Group",
    "GroupInfo",
    "GuardSettings",
    "Handle",
    "Health",
    "InboxInfo",
    "InboxSettings",
    "InboxStatus",
    "IngestSettings",
    "Instance",
    "Keys",
    "Kms",
    "Lag",
    "Limits",
    "ListenSettings",
    "Listener",
    "ListenerOptions",
    "MasterKey",
    "MemberInfo",
    "Migration",
    "MovePlan",
    "Order",
    "OrderSettings",
    "OutboxSettings",
    "Preview",
    "Priority",
    "Producer",
    "Progress",
    "Reading",
    "Refreshed",
    "RelaySettings",
    "ReplicaSettings",
    "ReplicaStatus",
    "Report",
    "Retention",
    "Service",
    "Share",
    "Status",
    "StoredEvent",
    "Tier",
    "TieredInbox",
    "TopicInfo",
    "TopicOptions",
    "TenantSettings",
    "TopicSettings",
    "Topics",
    "Transaction",
    "TypeStats",
]
