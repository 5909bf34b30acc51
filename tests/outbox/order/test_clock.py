"""The database's clock is set back while events wait: each key keeps its order, and nothing waits for the old time."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from kit import Probe, delivering, make_database
from outbox.test_ordered import quick
from relaybox import Event, Listeners, Outbox
from relaybox.clock import SystemClock, utc_now

STEP = timedelta(minutes=10)  # far more than a test waits


class SteppedClock(SystemClock):
    """The database's clock, ahead of the real one until it is set back."""

    def __init__(self) -> None:
        self.ahead = STEP

    def database_now(self) -> datetime:
        return utc_now() + self.ahead

    def set_back(self) -> None:
        self.ahead = timedelta(0)


@pytest.fixture(
    params=["postgres-shards", "postgres-advisory", "postgres-rows", "mariadb-shards", "mariadb-rows", "sqlite-shards"]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    engine, strategy = request.param.split("-")
    return make_database(engine, tmp_path), strategy


def test_a_key_keeps_its_order(place: tuple[str, str]) -> None:
    url, strategy = place
    clock, probe, listeners = SteppedClock(), Probe(), Listeners()
    listeners.on("Step")(lambda event, delivery: probe.deliver(event, delivery))
    with Outbox(url, clock=clock) as writer:
        for number in (1, 2, 3):
            with writer.transaction() as tx:
                writer.write(tx, Event("Step", number, key="order-7"))
            clock.set_back()  # after the first
    settings = quick({"order.strategy": strategy})
    with delivering(Outbox, url, listeners, clock=clock, settings=settings, observers=[probe], ordered=True):
        probe.wait(probe.wrote(3))
    assert [seen.event.payload for seen in probe.seen] == [1, 2, 3]
