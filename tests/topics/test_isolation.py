"""Servers whose transactions begin in another isolation than READ COMMITTED.

Whatever locks something and then looks at it must see what the one before it has committed. Under another default its
snapshot would be older than its lock. So the trials in which many are at one thing at once are run again on databases
with such a default."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from kit import until
from relaybox import Event, Retry, Settings
from relaybox.testing.servers import PostgresServer
from relaybox.testing.servers.postgres import connect, database_name, identifier
from relaybox.types import DeliverySettings

from . import (
    test_backfill,
    test_consumers,
    test_group_trouble,
    test_late_commits,
    test_marks,
    test_move,
    test_parked,
    test_queue_move,
    test_states,
    test_ticks,
)
from .kit import World
from .test_group import process
from .world import World as Marked

ISOLATIONS = ["repeatable read", "serializable"]


@pytest.fixture(params=ISOLATIONS)
def isolation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The default of every database that the test makes."""
    made: Callable[..., str] = PostgresServer.create_database

    def create(server: PostgresServer, template: str | None = None) -> str:
        url = made(server, template)
        with connect(server.url()) as admin:
            admin.execute(
                f"ALTER DATABASE {identifier(database_name(url))} SET default_transaction_isolation = '{request.param}'"
            )
        return url

    monkeypatch.setattr(PostgresServer, "create_database", create)
    return str(request.param)


@contextmanager
def made() -> Iterator[Callable[..., Any]]:
    worlds: list[Marked] = []

    def make(tracking: Any, **options: Any) -> Marked:
        worlds.append(Marked(tracking, **options))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


PLAIN = [
    test_ticks.test_many_makers_make_one_row_of_ticks,
    test_late_commits.test_ids_above_the_snapshot_are_not_lost_while_ticks_are_made,
    test_states.test_twenty_instances_make_one_group,
]
ALONE = [
    test_parked.test_no_key_is_stuck_while_members_park_and_finish_at_once,
    test_consumers.test_order_per_key_with_three_consumers_crashes_and_failures,
    test_group_trouble.test_a_tick_that_a_subscription_under_way_begins_at_stays,
]


@pytest.mark.parametrize("trial", PLAIN, ids=lambda trial: trial.__name__)
def test_with_a_world(isolation: str, trial: Callable[[World], None]) -> None:
    with World() as world:
        trial(world)


@pytest.mark.parametrize("trial", ALONE, ids=lambda trial: trial.__name__)
def test_alone(isolation: str, trial: Callable[[], None]) -> None:
    trial()


@pytest.mark.parametrize("tracking", ["bitmap", "acks"])
def test_groups_that_mark_the_same_events(isolation: str, tracking: str) -> None:
    test_marks.test_sixteen_groups_ack_in_any_order_without_a_deadlock(tracking)


def test_backfills_that_begin_together(isolation: str) -> None:
    with made() as make:
        test_backfill.test_one_job_per_group(make("bitmap"))


@pytest.mark.parametrize(("was", "to"), [("offset", "bitmap"), ("acks", "offset")])
def test_a_move_while_others_write(isolation: str, was: Any, to: Any) -> None:
    with made() as make:
        test_move.test_writers_go_on_and_one_is_slow(make, was, to)


def test_a_move_of_a_queue_while_others_write(isolation: str) -> None:
    with made() as make:
        test_queue_move.test_writers_go_on(partial(make, semantics="queue"), "rows", "offset")


async def test_an_ordered_push_group_with_an_event_that_fails(isolation: str) -> None:
    """What waits behind it is not held behind nobody when it is done at last."""
    settings = Settings(delivery=DeliverySettings(instance_ttl="1s", lease="3s", retry=Retry(base="5ms", max="20ms")))
    async with process(settings=settings) as here:
        seen: dict[str, list[int]] = {}
        tries: dict[Any, int] = {}

        async def handle(event: Event) -> None:
            tries[event.seq] = tries.get(event.seq, 0) + 1
            await asyncio.sleep(0)
            if event.payload % 5 == 1 and tries[event.seq] < 3:
                raise ValueError("not yet")
            seen.setdefault(event.key or "", []).append(event.payload)

        async with here.deliver(handle, ordered=True, on_exhausted="block"):
            for start in range(0, 200, 20):
                await here.write(*range(start, start + 20), key=lambda n: f"k{n % 4}")
            await until(lambda: sum(map(len, seen.values())) == 200)
        assert all(numbers == sorted(numbers) for numbers in seen.values())
