"""Looking for what somebody should know before a customer does."""

from __future__ import annotations

import logging
from datetime import timedelta

from ..errors import StoreError
from ..facts import Standing
from ..store.topics.upkeep import Condition
from .report import Report
from .work import Work

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
    def __init__(self, work: Work) -> None:
        self._work = work

    async def look(self) -> Report:
        work = self._work
        found = [*await self._subscriptions(), *await self._groups(), *await self._marks(), *await self._horizon()]
        await work.alerts.found(LOOKED, found)
        return Report()

    async def _subscriptions(self) -> list[Condition]:
        work = self._work
        return [
            Condition(
                "zero_subscriptions",
                topic,
                "",
                f"no active group; {'writes are refused' if blocked else 'what is written is delivered to nobody now'}",
            )
            for topic, blocked in await work.read(work.store.without_groups())
        ]

    async def _groups(self) -> list[Condition]:
        work = self._work
        found = []
        for quiet in await work.read(work.store.near_timeout(work.now)):
            text = f"no heartbeat for {quiet.silent.total_seconds():.0f} of {quiet.timeout.total_seconds():.0f} s"
            found.append(Condition("group_near_timeout", quiet.topic, quiet.group, text))
        for topic, group, still, events in await work.read(work.store.standing_still(STUCK, FEW, work.now)):
            text = f"a shard did not move for {still.total_seconds() / 60:.0f} min with about {events} events ahead"
            found.append(Condition("group_stuck", topic, group, text))
        return found

    async def _marks(self) -> list[Condition]:
        work = self._work
        found = []
        for topic in await work.topics():
            name, tracking = topic.topic.name, topic.topic.tracking
            if tracking not in ("bitmap", "acks"):
                continue
            count, oldest = await work.read(work.store.open_marks(topic, STUCK, FEW + 1, work.now))
            if count > FEW and oldest is not None:
                text = f"more than {FEW} events are not complete after {STUCK}, the oldest after {oldest}"
                found.append(Condition("events_stuck", name, "", text))
            if wrong := await work.read(work.store.mismatched(topic, 1000)):
                text = f"{wrong} open event(s) wait for a group that is dead or cancelled"
                found.append(Condition("events_mismatched", name, "", text))
            if tracking == "acks" and (rows := await work.read(work.store.ack_rows(topic))) > MANY_ACKS:
                found.append(Condition("acks_many", name, "", f"about {rows:,} rows of acknowledgements"))
        return found

    async def _horizon(self) -> list[Condition]:
        """How long the oldest writer has been at it: only its own events wait for it, but vacuum does too."""
        work = self._work
        try:
            age = await work.read(work.store.horizon())
        except StoreError as error:
            log.warning("the age of the oldest transaction could not be measured: %s", type(error).__name__)
            work.observers(Standing(None, work.backlog))
            return []
        work.observers(Standing(age, work.backlog))
        if age < OLD_TRANSACTION:
            return []
        text = f"a transaction that may have written events is open for {age.total_seconds():.0f} s; they wait for it"
        return [Condition("reader_horizon", "", "", text)]
