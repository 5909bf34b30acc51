"""Feeds of orders, and a maintainer that does what a test says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from kit import rows
from relaybox import (
    AsyncMaintainer,
    AsyncOutbox,
    Feed,
    Settings,
)
from relaybox.clock import SystemClock
from relaybox.facts import Alert, Fact
from relaybox.maintenance import Report
from relaybox.types import FeedSettings

TOTALS = Feed(
    "totals",
    "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer",
    key="customer",
    sources={"orders": "customer"},
    every="1m",
)
SHARES = replace(TOTALS, name="shares", query="SELECT customer, sum(100 / amount) AS n FROM orders GROUP BY customer")


class LaterClock(SystemClock):
    """Real seconds, and a database time that the test puts forward."""

    ahead = timedelta(0)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def database_now(self) -> datetime | None:
        return self.now()

    def passes(self, **amount: float) -> None:
        self.ahead += timedelta(**amount)


class Upkeep:
    """A maintainer that does what the test says, when it says so."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.url = url
        self.clock = LaterClock()
        self.facts: list[Fact] = []
        self.settings = Settings(feeds=FeedSettings(**settings))

    def maintainer(self) -> AsyncMaintainer:
        outbox = AsyncOutbox(self.url, settings=self.settings, clock=self.clock)
        return AsyncMaintainer(outbox, observers=[self.facts.append])

    async def does(self, *jobs: str) -> Report:
        maintainer = self.maintainer()
        try:
            report = maintainer._report = Report(leading=await maintainer._take_term())
            for job in jobs:
                await maintainer._run(job)
            return report
        finally:
            await maintainer.stop()

    def told(self, kind: type[Fact]) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def alerts(self, name: str) -> list[tuple[str, bool]]:
        return [(fact.group, fact.over) for fact in self.told(Alert) if fact.name == name]


def execute(url: str, *statements: str) -> None:
    for statement in statements:
        rows(url, statement)
