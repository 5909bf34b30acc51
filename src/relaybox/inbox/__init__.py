"""The inbox: every message of another service is accepted once, and takes effect once."""

from ..store.inbox_claim import Share, is_mine
from ..store.inbox_gaps import Gap
from ..store.inbox_operate import DeadMessage, InboxHealth, InboxStatus, MessageFilter, Thresholds, TypeStats
from ..store.inbox_order import TIERS, Order, Priority, Tier
from .drain import Drained, Retention
from .inbox import AsyncInbox, Inbox
from .processor import AsyncProcessor, Processed, Processor
from .tiers import AsyncTieredInbox, TieredInbox

__all__ = [
    "TIERS",
    "AsyncInbox",
    "AsyncProcessor",
    "AsyncTieredInbox",
    "DeadMessage",
    "Drained",
    "Gap",
    "Inbox",
    "InboxHealth",
    "InboxStatus",
    "MessageFilter",
    "Order",
    "Priority",
    "Processed",
    "Processor",
    "Retention",
    "Share",
    "Thresholds",
    "Tier",
    "TieredInbox",
    "TypeStats",
    "is_mine",
]
