"""Looking for what somebody should know before a customer does."""

from __future__ import annotations

import logging
from datetime import timedelta

from ..errors import StoreError
from ..facts import Standing
from ..store.topics.maintenance import AlertCondition
from .context import JobContext
from .feeds import FeedJobs
from .report import Report

log = logging.getLogger("relaybox")
LOOKED = (
    "zero_subscriptions",
    "group_near_timeout",
    "group_stuck",
    "events_stuck",
    "events_mismatched",
    "acks_many",
    "reader_horizon",
)
STUCK = timedelta(hours=1)
FEW = 100
MANY_ACKS = 1_000_000_000
OLD_TRANSACTION = timedelta(minutes=5)


class Watch:
    def __init__(self, context: JobContext, feeds: FeedJobs) -> None:
        self._context = context
        self._feeds = feeds

    async def look(self) -> Report:
        context = self._context
        found = [*await self._subscriptions(), *await self._groups(), *await self._marks(), *await self._horizon()]
        await context.alerts.found(LOOKED, found)
        await self._feeds.look()
        return Report()

    async def _subscriptions(self) -> list[AlertCondition]:
        context = self._context
        return [
            AlertCondition(
                "zero_subscriptions",
                topic,
                "",
                f"no active group; {'writes are refused' if blocked else 'what is written is delivered to nobody now'}",
            )
            for topic, blocked in await context.read(context.store.without_groups())
        ]

    async def _groups(self) -> list[AlertCondition]:
        context = self._context
        found = []
        for quiet in await context.read(context.store.near_timeout(context.now)):
            text = f"no heartbeat for {quiet.silent.total_seconds():.0f} of {quiet.timeout.total_seconds():.0f} s"
            found.append(AlertCondition("group_near_timeout", quiet.topic, quiet.group, text))
        for topic, group, still, events in await context.read(context.store.standing_still(STUCK, FEW, context.now)):
            text = f"a shard did not move for {still.total_seconds() / 60:.0f} min with about {events} events ahead"
            found.append(AlertCondition("group_stuck", topic, group, text))
        return found

    async def _marks(self) -> list[AlertCondition]:
        context = self._context
        found = []
        for topic in await context.topics():
            name, tracking = topic.topic.name, topic.topic.tracking
            if tracking not in ("bitmap", "acks"):
                continue
            count, oldest = await context.read(context.store.open_marks(topic, STUCK, FEW + 1, context.now))
            if count > FEW and oldest is not None:
                text = f"more than {FEW} events are not complete after {STUCK}, the oldest after {oldest}"
                found.append(AlertCondition("events_stuck", name, "", text))
            if wrong := await context.read(context.store.mismatched(topic, 1000)):
                text = f"{wrong} open event(s) wait for a group that is dead or cancelled"
                found.append(AlertCondition("events_mismatched", name, "", text))
            if tracking == "acks" and (rows := await context.read(context.store.ack_rows(topic))) > MANY_ACKS:
                found.append(AlertCondition("acks_many", name, "", f"about {rows:,} rows of acknowledgements"))
        return found

    async def _horizon(self) -> list[AlertCondition]:
        """How long the oldest writer has been at it: only its own events wait for it, but vacuum does too."""
        context = self._context
        try:
            age = await context.read(context.store.horizon())
        except StoreError as error:
            log.warning("the age of the oldest transaction could not be measured: %s", type(error).__name__)
            context.observers(Standing(None, context.backlog))
            return []
        context.observers(Standing(age, context.backlog))
        if age < OLD_TRANSACTION:
            return []
        text = f"a transaction that may have written events is open for {age.total_seconds():.0f} s; they wait for it"
        return [AlertCondition("reader_horizon", "", "", text)]
