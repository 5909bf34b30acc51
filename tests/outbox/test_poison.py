"""Impossible rows in the tables: refused, or harmless. Honest events behind and between them are delivered, and the
commands of operators work."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kit import PATIENCE, Probe, delivering, impossible, make_database, one, with_driver
from relaybox import AsyncOutbox, Event, Listeners, Outbox, Where
from relaybox.outbox.doctor import examine

from .poison import KINDS, E, statements, unguarded
from .test_ordered import quick

WAYS = {
    ("postgres", "psycopg"): ({}, {"ordered": True}, {"ordered": True, "by": "rows"}, {"alone": True}),
    ("postgres", "asyncpg"): ({}, {"ordered": True}, {"ordered": True, "by": "advisory"}),
    ("sqlite", ""): ({}, {"ordered": True}, {"alone": True}),
    ("mariadb", ""): ({}, {"ordered": True}, {"ordered": True, "by": "rows"}),
}
ALL = [(engine, driver, way) for (engine, driver), ways in WAYS.items() for way in ways]


def put(engine: str, url: str, kinds: Sequence[str]) -> list[str]:
    """Between honest events, whose ids these are."""
    honest: list[str] = []
    with Outbox(url) as writer:
        for n, kind in enumerate(kinds):
            poison = Event("Poison", {}, key=f"p{n}")
            before, behind, alone = (Event("Honest", n + 1, key=key) for key in (f"k{n}", f"k{n}", None))
            for events in ([before, poison], [behind, alone]):
                with writer.transaction() as tx:
                    writer.write_all(tx, events)
                if poison in events:
                    seq = one(url, f"SELECT seq FROM {E} WHERE event_id = '{poison.id}'")
                    impossible.put(engine, url, statements(engine, kind, seq))
            honest += [before.id, behind.id, alone.id]
    return honest


@pytest.mark.parametrize("engine", KINDS)
def test_there_are_fifty_kinds(engine: str) -> None:
    assert len(KINDS[engine]) >= 50


@pytest.mark.parametrize("engine", KINDS)
def test_what_can_be_said_of_a_row_alone_is_refused(engine: str, tmp_path: Path) -> None:
    url = make_database(engine, tmp_path)
    for kind in KINDS[engine]:
        if kind.startswith("!"):
            with pytest.raises(Exception, match=r"_limits"):
                put(engine, url, [kind])


@pytest.mark.parametrize(("engine", "driver", "way"), ALL, ids=str)
def test_impossible_rows_that_are_there_all_the_same_harm_nobody(
    engine: str, driver: str, way: dict[str, Any], tmp_path: Path
) -> None:
    url, probe, listeners = make_database(engine, tmp_path), Probe(), Listeners()
    unguarded(engine, url)
    honest = put(engine, url, list(KINDS[engine]))
    settings = quick({"order.strategy": way.get("by", "shards")})
    options = {name: value for name, value in way.items() if name != "by"} | {
        "settings": settings,
        "observers": [probe],
    }

    @listeners.on("Honest")
    def deliver(event: Event, delivery: Any) -> None:
        assert event.payload
        probe.deliver(event, delivery)

    if driver == "asyncpg":
        asyncio.run(delivered_by_asyncpg(with_driver(url, driver), listeners, probe, honest, options))
        box = Outbox(url)
    else:
        with delivering(Outbox, url, listeners, **options) as box:
            probe.wait(probe.has(*honest), 2 * PATIENCE)
            operated(box)
        box = Outbox(url)
    assert [event_id for event_id in honest if probe.count(event_id) != 1] == []
    with box:
        operated(box)


async def delivered_by_asyncpg(
    url: str, listeners: Listeners, probe: Probe, honest: Sequence[str], options: dict[str, Any]
) -> None:
    async with delivering(AsyncOutbox, url, listeners, **options) as box:
        await probe.until(probe.has(*honest), 2 * PATIENCE)
        await box.status()
        assert await box.dead.list(limit=1000)
        await box.events.list(limit=1000)


def operated(box: Outbox) -> None:
    """What operators do, with all there is."""
    box.status()
    assert examine(box._db, box.store)
    letters, events = box.dead.list(limit=1000), box.events.list(limit=1000)
    repr((letters, events))
    assert letters
    assert box.events.count(Where(type="Poison"))
    box.keys.list()
    box.dead.replay(Where(), reason="again")
    box.events.replay(Where(type="Poison"), reason="again")
    box.dead.discard(Where(ids=[letters[0].event.id]), reason="no more")
    box.purge(retention=timedelta(0))
