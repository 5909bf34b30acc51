"""Writers that commit late, groups that read, a maintainer that deletes whatever it may at once: nothing is lost."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from datetime import timedelta

import psycopg
import pytest

from relaybox import AsyncMaintainer
from relaybox.settings import Settings, TopicSettings
from relaybox.store.topics import Start
from topics.kit import World, happened

SECONDS, PATIENCE = 6.0, 60.0  # for so long, and for longer if nothing could be deleted yet
UPKEEP = Settings(
    topics=TopicSettings(
        tick_interval="50ms",
        thin_interval="100ms",
        partition_interval="100ms",
        cleanup_interval="20ms",
        detect_interval="100ms",
    )
)


@pytest.mark.parametrize("tracking", ["offset", "bitmap"])
def test_nothing_unread_is_ever_deleted(tracking: str) -> None:
    instant = timedelta(microseconds=1)
    options = {"tracking": tracking, "retention": instant, "zero_retention": instant, "cleanup_batch": 50}
    with World(options=options) as world:
        groups = [world.group(name) for name in ("one", "two")]
        stop, done = threading.Event(), threading.Event()
        written: list[int] = []
        got: dict[str, list[int]] = {group.name: [] for group in groups}
        errors: list[BaseException] = []

        def write(number: int) -> None:
            chance = random.Random(number)
            with psycopg.connect(world.url) as connection:
                while not stop.is_set():
                    seqs = []
                    for n in range(chance.randint(1, 5)):
                        seqs += world.write(happened(n, f"k{chance.randint(0, 20)}"), on=connection)
                        if chance.random() < 0.05:
                            time.sleep(chance.random() * 0.3)
                    if chance.random() < 0.1:
                        connection.rollback()
                    else:
                        connection.commit()
                        written.extend(seqs)

        def read(index: int) -> None:
            group, member = groups[index], world.member(groups[index], ttl=timedelta(minutes=5))
            chance = random.Random(index)
            while True:
                last = done.is_set()
                seqs = world.drain(group, member, events=20, ranges=3)
                got[group.name] += seqs
                if last and not seqs:
                    return
                time.sleep(chance.random() * 0.1)

        def joins_and_leaves() -> None:
            """Others come from the beginning of what is there, and go."""
            number = 0
            while not stop.is_set():
                number += 1
                late = world.group(f"late-{number}", Start("earliest"))
                world.run(world.store.set_state(late, "cancelled", "test", None))

        async def maintain() -> int:
            async with AsyncMaintainer(world.url, settings=UPKEEP):
                while not done.is_set():
                    await asyncio.sleep(0.05)
            return 0

        def guarded(work: object, *arguments: object) -> threading.Thread:
            def run() -> None:
                try:
                    work(*arguments)  # type: ignore[operator]
                except BaseException as error:
                    errors.append(error)
                    stop.set()
                    done.set()

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        writers = [guarded(write, n) for n in range(4)] + [guarded(joins_and_leaves)]
        readers = [guarded(read, n) for n in range(2)]
        keeper = guarded(lambda: asyncio.run(maintain()))
        began = time.monotonic()
        while not stop.wait(0.1) and time.monotonic() - began < PATIENCE:
            deleted = len(written) - world.one(f"SELECT count(*) FROM {world.log}")
            if deleted > 0 and len(written) > 100 and time.monotonic() - began > SECONDS:
                break
        stop.set()
        for thread in writers:
            thread.join()
        done.set()
        for thread in [*readers, keeper]:
            thread.join()
        assert errors == []
        assert len(written) > 100
        assert deleted > 0, "the maintainer was at work meanwhile"
        for name, seqs in got.items():
            assert set(written) - set(seqs) == set(), name
            assert len(seqs) == len(set(seqs)), name
