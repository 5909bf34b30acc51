"""The inbox: every message of another service is accepted once, and takes effect once."""

from ..store.inbox.adopted.adoption import Adoption, Columns
from ..store.inbox.adopted.make import Dropped, InboxInfo
from ..store.inbox.claim import Share, is_mine
from ..store.inbox.gaps import Gap
from ..store.inbox.operate import DeadMessage, InboxHealth, InboxMessage, InboxStatus, MessageFilter, Thresholds
from ..store.inbox.order import TIERS, Order, Priority, Tier
from ..store.inbox.stats import TypeStats
from .adopt import async_inboxes, inboxes
from .alerts import Alerting
from .drain import Drained, Retention
from .inbox import AsyncInbox, Inbox
from .processor import AsyncProcessor, Processed, Processor
from .tiers import AsyncTieredInbox, TieredInbox

__all__ = [
    "TIERS",
    "Alerting",
    "Adoption",
    "AsyncInbox",
    "AsyncProcessor",
    "AsyncTieredInbox",
    "Columns",
    "DeadMessage",
    "Drained",
    "Dropped",
    "Gap",
    "Inbox",
    "InboxHealth",
    "InboxMessage",
    "InboxInfo",
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
    "async_inboxes",
    "inboxes",
    "is_mine",
]
