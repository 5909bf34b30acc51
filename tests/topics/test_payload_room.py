"""Large payloads wait in the log until there is room for them: of groups, consumers, and groups that share a read."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from kit import PATIENCE, make_postgres, until
from relaybox import AsyncOutbox, Event, Outbox, StartFrom
from relaybox.topic import Topic

from .test_group import QUICK

LARGE, ROOM, REST = 300_000, 4_000_000, 6_000_000  # REST: all that is no payload, and copies under way
SIZES = [LARGE, 10, LARGE, LARGE, 30_000, 20, LARGE, LARGE, 30, LARGE] * 20  # more than 36 MB
SETTINGS = QUICK.replaced({"delivery.payload_bytes": ROOM})
GROUPS = {"plain": False, "line": True, **{f"g{n}": False for n in range(16)}}  # whether they keep order


def written(tracking: str, sizes: Sequence[int], room: int = ROOM) -> str:
    url = make_postgres()
    with Outbox(url) as box:
        box.topics.configure(Topic.pub_sub("files", tracking=tracking, shards=4))
        for name, ordered in GROUPS.items():
            box.topics.group("files", name, start=StartFrom.earliest(), ordered=ordered).create()
        for n, size in enumerate(sizes):
            with box.transaction() as tx:
                box.write(tx, Event("File", payload_bytes=bytes(size), key=f"k{n % 8}", topic="files"))
    return url


@contextmanager
def little_memory(most: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < most


@pytest.mark.parametrize("names", [["plain"], ["line"], [f"g{n}" for n in range(16)]], ids=["plain", "line", "sixteen"])
@pytest.mark.parametrize("tracking", ["offset", "bitmap", "acks"])
async def test_groups_read_no_more_than_there_is_room_for(tracking: str, names: list[str]) -> None:
    url, seen = written(tracking, SIZES), {name: list[int]() for name in names}
    async with AsyncOutbox(url, settings=SETTINGS) as box:

        def noting(name: str) -> object:
            async def note(event: Event) -> None:
                seen[name].append(event.seq or 0)

            return note

        kept = ROOM if len(names) > 1 else 0  # for those that have not come to it
        with little_memory(ROOM + kept + REST + LARGE * len(names)):
            for name in names:
                await box.topics.group("files", name).deliver(noting(name)).start()  # type: ignore[arg-type]
            await until(lambda: all(len(found) >= len(SIZES) for found in seen.values()), patience=3 * PATIENCE)
    for found in seen.values():
        assert set(Counter(found).values()) == {1}
        assert len(found) == len(SIZES)
        for key in range(8) if names == ["line"] else ():
            numbers = [seq for seq in found if (seq - 1) % 8 == key]
            assert numbers == sorted(numbers)


@pytest.mark.parametrize("name", ["plain", "line"])
@pytest.mark.parametrize("tracking", ["offset", "bitmap", "acks"])
def test_a_poll_reads_no_more_than_there_is_room_for(tracking: str, name: str) -> None:
    url, seen = written(tracking, SIZES), list[int]()
    with Outbox(url, settings=SETTINGS) as box, box.topics.group("files", name).consumer() as consumer:
        with little_memory(ROOM + REST):
            while batch := consumer.poll(1000):
                assert sum(len(event.body) for event in batch) <= ROOM
                seen += [event.seq or 0 for event in batch]
                consumer.commit(batch)
                del batch
    assert sorted(seen) == list(range(1, len(SIZES) + 1))


@pytest.mark.parametrize("name", ["plain", "line"])
def test_one_that_is_larger_than_all_the_room_comes_alone(name: str) -> None:
    sizes = [10, LARGE, LARGE, 20, LARGE, 30]
    settings, seen = QUICK.replaced({"delivery.payload_bytes": 1000}), list[int]()
    with Outbox(written("offset", sizes), settings=settings) as box:
        with box.topics.group("files", name).consumer() as consumer:
            while batch := consumer.poll(1000):
                assert sum(len(event.body) > 1000 for event in batch) <= 1
                seen += [event.seq or 0 for event in batch]
                consumer.commit(batch)
    assert sorted(seen) == list(range(1, len(sizes) + 1))


def test_what_somebody_left_behind_is_read_as_far_as_there_is_room() -> None:
    """Ranges that were taken with much room, by one with little."""
    url, seen = written("offset", SIZES), list[int]()
    with Outbox(url, settings=QUICK) as box, box.topics.group("files", "plain").consumer() as consumer:
        batches = [consumer.poll(10) for _ in range(8)]
        assert all(batches)
        for batch in batches:
            consumer.release(batch)
    with Outbox(url, settings=SETTINGS) as box, box.topics.group("files", "plain").consumer() as consumer:
        while batch := consumer.poll(1000):
            seen += [event.seq or 0 for event in batch]
            consumer.commit(batch)
    assert sorted(seen) == list(range(1, len(SIZES) + 1))
