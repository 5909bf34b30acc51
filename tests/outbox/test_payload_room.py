"""Large payloads wait in the database until there is room for them, in order, and none waits for ever."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from kit import PATIENCE, Probe, delivering, make_database
from relaybox import Event, Inbox, Listeners, Outbox

from .test_ordered import quick

ROOM = 1_000_000
LARGE = 300_000
SIZES = [LARGE, 10, LARGE, ROOM + 40_000, LARGE, 20, LARGE, LARGE, 30, LARGE]


def large() -> list[Event]:
    """Of two keys; one is larger than all the room there is."""
    return [Event("Large", payload_bytes=bytes([n]) * size, key=f"k{n % 2}") for n, size in enumerate(SIZES)]


@pytest.mark.parametrize("way", [{}, {"ordered": True}, {"ordered": True, "by": "rows"}], ids=str)
@pytest.mark.parametrize("engine", ["postgres", "sqlite", "mariadb"])
def test_no_more_is_claimed_than_there_is_room_for(engine: str, way: dict[str, Any], tmp_path: Path) -> None:
    if engine == "sqlite" and "by" in way:
        pytest.skip("SQLite leases no keys")
    url, probe, listeners, go_on = make_database(engine, tmp_path), Probe(), Listeners(), threading.Event()
    events = large()

    @listeners.on("Large")
    def listen(event: Event, delivery: Any) -> None:
        probe.deliver(event, delivery)
        assert go_on.wait(PATIENCE)

    with Outbox(url) as writer, writer.transaction() as tx:
        writer.write_all(tx, events)
    settings = quick({"delivery.payload_bytes": ROOM, "order.strategy": way.get("by", "shards")})
    with delivering(Outbox, url, listeners, settings=settings, ordered=way.get("ordered", False)) as box:
        probe.wait(lambda: probe.seen)
        claimed = [stored.event for stored in box.events.list() if stored.state == "claimed"]
        assert 0 < sum(len(event.body) for event in claimed) <= ROOM
        go_on.set()
        probe.wait(probe.has(*[event.id for event in events]))
    sent = {event.id: event.body for event in events}
    assert {seen.event.id: seen.event.body for seen in probe.seen} == sent
    assert {seen.attempts for seen in probe.seen} == {1}
    assert len(probe.seen) == len(events)
    for key in ("k0", "k1"):
        numbers = [seen.event.seq or 0 for seen in probe.seen if seen.event.key == key]
        assert numbers == sorted(numbers) or "ordered" not in way


@pytest.mark.parametrize("engine", ["postgres", "sqlite", "mariadb"])
def test_no_more_messages_are_claimed_than_there_is_room_for(engine: str, tmp_path: Path) -> None:
    url, probe, go_on, sent = make_database(engine, tmp_path), Probe(), threading.Event(), large()

    def handle(event: Event, connection: object) -> None:
        probe.deliver(event, Attempt)
        assert go_on.wait(PATIENCE)

    with Inbox(url, settings=quick({"delivery.payload_bytes": ROOM})) as inbox:
        inbox.migrate()
        inbox.accept_all(None, sent)
        with inbox.process(handle):
            probe.wait(lambda: probe.seen)
            if engine != "sqlite":  # where the handler is the one that may write
                claimed = [stored.event for stored in inbox.events.list() if stored.state == "claimed"]
                assert 0 <= sum(len(event.body) for event in claimed) <= ROOM
            go_on.set()
            probe.wait(probe.has(*[event.id for event in sent]))
    assert {seen.event.id: seen.event.body for seen in probe.seen} == {event.id: event.body for event in sent}


class Attempt:
    attempts, source = 1, "COLD"
