"""ManualClock: stands still, moves on demand, wakes sleepers of any loop."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

from relaybox.testing import ManualClock


def test_stands_still_and_moves_by_what_it_is_told() -> None:
    clock = ManualClock(datetime(2031, 1, 1, tzinfo=UTC))
    assert clock.now() == clock.now() == clock.database_now() == datetime(2031, 1, 1, tzinfo=UTC)
    assert clock.advance(1.5) == datetime(2031, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    assert clock.advance(timedelta(seconds=0.5), minutes=1) == datetime(2031, 1, 1, 0, 1, 2, tzinfo=UTC)
    assert clock.monotonic() == 62.0


def test_refuses_naive_start_and_going_back() -> None:
    with pytest.raises(ValueError, match="time zone"):
        ManualClock(datetime(2031, 1, 1))
    with pytest.raises(ValueError, match="forward"):
        ManualClock().advance(-1)


async def test_sleepers_wake_in_the_order_of_their_times() -> None:
    clock = ManualClock()
    woken: list[int] = []

    async def sleeper(seconds: int) -> None:
        await clock.sleep(seconds)
        woken.append(seconds)

    tasks = [asyncio.create_task(sleeper(n)) for n in (3, 1, 2)]
    await clock.wait_for_sleepers(3)
    clock.advance(2)
    await asyncio.wait(tasks[1:])
    assert (woken, clock.sleeping) == ([1, 2], 1)
    clock.advance(1)
    await tasks[0]
    assert woken == [1, 2, 3]


async def test_a_sleep_of_zero_returns_and_a_cancelled_one_is_forgotten() -> None:
    clock = ManualClock()
    await clock.sleep(0)
    task = asyncio.create_task(clock.sleep(10))
    await clock.wait_for_sleepers()
    task.cancel()
    await asyncio.wait([task])
    assert clock.sleeping == 0
    clock.advance(20)  # must not touch the cancelled future


async def test_waiting_for_sleepers_gives_up() -> None:
    with pytest.raises(TimeoutError, match=r"expected 2 sleepers .* there are 0"):
        await ManualClock().wait_for_sleepers(2, timeout=0.01)


def test_wakes_a_loop_in_another_thread() -> None:
    clock = ManualClock()
    thread = threading.Thread(target=lambda: asyncio.run(clock.sleep(5)))
    thread.start()
    clock.wait_for_sleepers_sync()
    clock.advance(5)
    thread.join(5)
    assert not thread.is_alive()


def test_sync_waiting_for_sleepers_gives_up() -> None:
    with pytest.raises(TimeoutError, match="expected 1 sleepers"):
        ManualClock().wait_for_sleepers_sync(timeout=0.01)


def test_advancing_from_many_threads_adds_up() -> None:
    clock = ManualClock()
    threads = [threading.Thread(target=lambda: [clock.advance(1) for _ in range(200)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.monotonic() == 1600
