"""What groups of one process share: it is bounded by its real size, and goes when everybody has had it."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest

from kit import until
from relaybox import AsyncOutbox, Event
from relaybox.codec import JSON_CODEC
from relaybox.store.topics import LAST, Place
from relaybox.topic import Topic
from relaybox.topics.shared_reads import SharedReads

from .kit import fresh_url
from .test_group import Seen, process

MANY = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "region": "north"}


@pytest.mark.parametrize(
    ("payload", "headers"), [(1, None), (1, MANY), ({"text": "x" * 3000}, None)], ids=["small", "headers", "large"]
)
async def test_pages_take_no_more_memory_than_their_limit(payload: Any, headers: dict[str, str] | None) -> None:
    """As a tracer counts it, with the events made of the rows and all that a handler asked them for."""
    limit, pages = 4 * 2**20, 30
    async with AsyncOutbox(fresh_url()) as box:
        await box.migrate()
        await box.topics.configure(Topic.pub_sub("orders", shards=1))
        async with box.transaction() as tx:
            written = [Event("Placed", payload, key=f"k{n}", headers=headers, topic="orders") for n in range(500)]
            await box.write_all(tx, written)
        del written
        context = box.topics._context
        topic = await context.db.run(context.known("orders"), tx=False)
        tick = await context.db.run(context.store.tick(topic, None), tx=False)
        assert tick is not None
        shared = SharedReads(limit)
        for _ in range(2):
            shared.join(topic.id)
        place = Place(0, 0, tick, 0, LAST)
        await context.db.run(context.store.read(topic, [place], 500), tx=False)  # what a first use keeps
        gc.collect()
        tracemalloc.start()
        try:
            for n in range(pages):
                [rows] = await context.db.run(context.store.read(topic, [place], 500), tx=False)
                page = shared.put(topic.id, place._replace(after=n), 500, rows)
                for event in shared.events(page, JSON_CODEC, "orders"):
                    assert event.headers is not None
                    assert event.created_at >= event.occurred_at
                del rows, page, event
            await context.db.run(context.known("orders"), tx=False)  # a connection keeps its last answer
            gc.collect()
            with_pages, _ = tracemalloc.get_traced_memory()
            for _ in range(2):
                shared.leave(topic.id)
            gc.collect()
            without, _ = tracemalloc.get_traced_memory()  # nothing else ran in between: the difference is the pages'
            assert 0.5 * limit < with_pages - without <= limit
        finally:
            tracemalloc.stop()


async def test_what_waits_for_a_slow_group_is_bounded_and_goes_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 200_000
    monkeypatch.setattr(SharedReads.__init__, "__defaults__", (limit,))
    async with process(None, Topic.pub_sub("orders", shards=2, fetch_batch=50)) as here:
        shared = here.box.topics._context.reads
        quick, slow = Seen(), Seen()
        for name, seen in (("quick", quick), ("slow", slow)):
            service = await here.deliver(seen.note, name).start()
        group = here.group("slow")
        await group.pause()
        weights = []
        for start in range(0, 2000, 100):
            await here.write(*range(start, start + 100), key=str)
            await until(lambda start=start: len(quick) == start + 100)  # type: ignore[misc]
            weights.append(shared.weight)
        assert limit / 2 < max(weights) <= limit
        await group.resume()
        await until(lambda: len(slow) == 2000)
        await service.stop()
        assert shared.weight == 0, "one group alone shares with nobody"


def test_what_is_read_while_a_group_starts_is_kept_for_it() -> None:
    """Groups that start together: the first of them reads before the last has joined."""
    shared, place = SharedReads(), Place(0, 0, 1, 0, LAST)
    rows: Any = [(1, "id", "Placed", None, None, None, None, b"{}", None, None, None, None)]
    shared.join(1)
    assert shared.put(1, place, 10, rows) is rows, "one group alone shares with nobody"
    with shared.coming():
        page = shared.put(1, place, 10, rows)
        shared.join(1)
    assert shared.get(1, place, 10) is page
    assert (shared.get(1, place, 10), shared.weight) == (None, 0), "everybody has had it"
