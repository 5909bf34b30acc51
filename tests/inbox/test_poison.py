"""Impossible rows in the tables of an inbox: refused, or harmless. Honest messages behind and between them are
processed, and the commands of operators work."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kit import Probe, impossible, one, with_driver
from relaybox import AsyncInbox, Event, Inbox, Listeners, Where
from relaybox.ids import key_hash
from relaybox.types import Order, Priority

from .effects import QUICK
from .kit import PATIENCE, inbox_url
from .poison import KINDS, statements, unguarded

ORDERED = {"order": Order()}
SKIPPING = {"order": Order(start=None, missing="1s", dead="skip")}
URGENT = {"priority": Priority()}
WAYS: dict[tuple[str, str], tuple[dict[str, Any], ...]] = {
    ("postgres", "psycopg"): ({}, ORDERED, SKIPPING, URGENT, {"batch": 7}, {"batch": 7, **ORDERED}),
    ("postgres", "asyncpg"): ({}, ORDERED),
    ("sqlite", ""): ({}, ORDERED, SKIPPING, URGENT, {"batch": 7}),
    ("sqlite", "aiosqlite"): ({}, ORDERED),
    ("mariadb", ""): ({}, ORDERED, SKIPPING, URGENT, {"batch": 7}),
}
ALL = [(engine, driver, way) for (engine, driver), ways in WAYS.items() for way in ways]


def put(engine: str, url: str, kinds: Sequence[str]) -> list[str]:
    """Between honest messages, whose ids these are."""
    honest: list[str] = []
    with Inbox(url) as inbox:
        for n, kind in enumerate(kinds):
            poison = Event("Poison", {}, key=f"p{n}", headers={"sequence": "1"})
            before, behind = (
                Event("Honest", n + 1, key=f"k{n}", headers={"sequence": place, "priority": place}) for place in "12"
            )
            alone = Event("Honest", n + 1)
            inbox.accept_all(None, [before, poison])
            seq = one(url, f"SELECT seq FROM inbox WHERE event_id = '{poison.id}'")
            values = {"s": seq, "n": n, "own": key_hash(f"p{n}"), "honest": key_hash(f"k{n}")}
            impossible.put(engine, url, statements(engine, kind, **values))
            inbox.accept_all(None, [behind, alone])
            honest += [before.id, behind.id, alone.id]
    return honest


@pytest.mark.parametrize("engine", KINDS)
def test_there_are_fifty_kinds(engine: str) -> None:
    assert len(KINDS[engine]) >= 50


@pytest.mark.parametrize("engine", KINDS)
def test_what_can_be_said_of_a_row_alone_is_refused(engine: str, tmp_path: Path) -> None:
    url = inbox_url(engine, tmp_path)
    for kind in KINDS[engine]:
        if kind.startswith("!"):
            with pytest.raises(Exception, match=r"_limits"):
                put(engine, url, [kind])


@pytest.mark.parametrize(("engine", "driver", "way"), ALL, ids=str)
def test_impossible_rows_that_are_there_all_the_same_harm_nobody(
    engine: str, driver: str, way: dict[str, Any], tmp_path: Path
) -> None:
    url, probe, listeners = inbox_url(engine, tmp_path), Probe(), Listeners[Any]()
    unguarded(engine, url)
    with Inbox(url) as inbox:
        inbox.configure(**{name: value for name, value in way.items() if name != "batch"})
    honest = put(engine, url, list(KINDS[engine]))

    @listeners.on("Honest")
    def process(event: Event) -> None:
        assert event.payload
        probe.deliver(event, Attempt)

    if driver in ("asyncpg", "aiosqlite"):
        asyncio.run(processed_in_a_loop(with_driver(url, driver), listeners, probe, honest, way))
    else:
        with Inbox(url, settings=QUICK, observers=[probe]) as inbox:
            with inbox.process(listeners, batch=way.get("batch", 1)):
                probe.wait(probe.has(*honest), 2 * PATIENCE)
                operated(inbox)
    assert [event_id for event_id in honest if probe.count(event_id) != 1] == []
    with Inbox(url) as inbox:
        operated(inbox)


async def processed_in_a_loop(
    url: str, listeners: Listeners[Any], probe: Probe, honest: Sequence[str], way: dict[str, Any]
) -> None:
    async with AsyncInbox(url, settings=QUICK, observers=[probe]) as inbox:
        async with inbox.process(listeners):
            await probe.until(probe.has(*honest), 2 * PATIENCE)
        await inbox.status()
        assert await inbox.dead.list(limit=1000)
        await inbox.events.list(limit=1000)


def operated(inbox: Inbox) -> None:
    """What operators do, with all there is."""
    for look in (inbox.status, inbox.health, inbox.info, inbox.stats, inbox.keys.list, inbox.alerts, inbox.verify):
        repr(look())
    letters, events = inbox.dead.list(limit=1000), inbox.events.list(limit=1000)
    repr((letters, events))
    assert letters
    assert inbox.events.count(Where(type="Poison"))
    inbox.dead.replay(Where(), reason="again")
    inbox.events.replay(Where(type="Poison"), reason="again")
    inbox.dead.discard(Where(ids=[letters[0].event.id]), reason="no more")
    inbox.purge(done=timedelta(0), seen=timedelta(0))


class Attempt:
    attempts, source = 1, "COLD"
