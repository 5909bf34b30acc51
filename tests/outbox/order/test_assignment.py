"""Which shards a process wants, three ways; and that no shard ever has two owners, whatever they want."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit import delivering
from relaybox import AsyncOutbox, Event, Listeners, Settings
from relaybox.errors import ConfigError
from relaybox.ids import rendezvous
from relaybox.outbox.shards import wish
from relaybox.settings import shard_numbers
from relaybox.store.instances import Instance
from relaybox.types import DeliverySettings, OrderSettings

NOW = datetime(2031, 1, 1, tzinfo=UTC)
names = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=8)


def peers(names: list[str]) -> list[Instance]:
    return [Instance(id, name, "relay", NOW, NOW) for id, name in enumerate(names, 1)]


def wanted(settings: Settings, everybody: list[Instance], me: Instance) -> set[int]:
    more, among, surplus = wish(settings, (), everybody, me.id, me.name)
    assert among is not None
    assert (more, surplus) == (len(among), set())
    return set(among)


@given(names, st.integers(1, 64))
def test_by_rendezvous_everybody_agrees_who_has_which(names: list[str], shards: int) -> None:
    settings, everybody = Settings(order=OrderSettings(shards=shards, assignment="rendezvous")), peers(names)
    shares = [wanted(settings, everybody, me) for me in everybody]
    assert sorted(shard for share in shares for shard in share) == list(range(shards))


@given(names, st.integers(1, 64))
def test_when_one_leaves_only_its_shards_move(names: list[str], shards: int) -> None:
    settings, (gone, *rest) = Settings(order=OrderSettings(shards=shards, assignment="rendezvous")), peers(names)
    for me in rest:
        before, after = wanted(settings, [gone, *rest], me), wanted(settings, rest, me)
        assert before <= after
        assert after - before <= wanted(settings, [gone, *rest], gone)


def test_the_weights_are_the_same_in_every_process_and_release() -> None:
    assert rendezvous(0, "relay-1") == 1940182683306493117
    assert rendezvous(15, "relay-1") == 3925965430308238567


def test_of_two_with_one_name_the_younger_has_the_shards() -> None:
    """The older is most likely what a crash left behind."""
    settings, [old, new] = Settings(order=OrderSettings(assignment="rendezvous")), peers(["same", "same"])
    assert (wanted(settings, [old, new], old), len(wanted(settings, [old, new], new))) == (set(), 16)


def test_what_is_not_wanted_is_let_go() -> None:
    static = Settings(order=OrderSettings(assignment="static", static_shards="0-2,5"))
    assert wish(static, [2, 5, 7], [], 1, "me") == (2, [0, 1], {7})
    leases = Settings(order=OrderSettings(shards=4))
    assert wish(leases, [0, 1, 2, 3], peers(["a", "b"]), 1, "a") == (-2, None, {2, 3})
    assert wish(leases, [3], peers(["a", "b"]), 2, "b") == (1, None, set())


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0", {0}), ("0-3", {0, 1, 2, 3}), (" 0-1 , 7,7", {0, 1, 7}), ("15", {15}), ("3-3", {3})],
)
def test_numbers_and_ranges(text: str, numbers: set[int]) -> None:
    assert shard_numbers(text, 16) == numbers


@pytest.mark.parametrize("text", ["", "16", "3-1", "-1", "1-", "a", "0,,1", "0-16", "1.5", "٣", 3, ["0"]])
def test_what_is_none_is_refused_with_the_value(text: Any) -> None:
    with pytest.raises(ConfigError, match="static_shards") as caught:
        Settings(order=OrderSettings(assignment="static", static_shards=text))
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "random"}, r"order\.strategy to be shards, advisory or rows, got 'random'"),
        ({"assignment": "none"}, r"order\.assignment to be leases, rendezvous or static"),
        ({"assignment": "static"}, "static_shards together with"),
        ({"static_shards": "1"}, "static_shards together with"),
        ({"keys_per_claim": 0}, "keys_per_claim to be a positive int"),
        ({"keys_per_claim": 201}, r"at most order\.key_candidates 200, got 201"),
        ({"lock_namespace": 2**31}, "32-bit"),
        ({"lock_namespace": True}, "lock_namespace to be of type int"),
        ({"shard_rows": 0}, "shard_rows to be a positive int"),
    ],
)
def test_settings_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OrderSettings(**options)


# -- running processes --------------------------------------------------------------------------------


def quick(owner: str, **order: Any) -> Settings:
    return Settings(
        delivery=DeliverySettings(owner=owner, instance_ttl="1s", lease="3s"), order=OrderSettings(shards=8, **order)
    )


def ordered(url: str, settings: Settings, *, migrate: bool = False) -> delivering[AsyncOutbox]:
    return delivering(AsyncOutbox, url, listeners(), ordered=True, settings=settings, migrate=migrate)


def listeners() -> Listeners:
    quiet = Listeners()

    async def listen(event: Event) -> None: ...

    quiet.on("E")(listen)
    return quiet


async def owners(box: AsyncOutbox, expected: dict[str, set[int]]) -> None:
    """Until the shards are shared out like this."""
    from relaybox.op import Op, Query

    def ask() -> Op[dict[str, set[int]]]:
        text = "SELECT i.name, s.shard FROM outbox_event_shard s JOIN outbox_event_instance i ON i.id = s.owner"
        found: dict[str, set[int]] = {}
        for name, shard in (yield Query("test", text, "rows").bind()).rows:
            found.setdefault(name, set()).add(shard)
        return found

    async with asyncio.timeout(20):
        while (now := await box._db.run(ask())) != expected:
            assert set().union(*now.values()) <= set(range(8))
            await asyncio.sleep(0.02)


async def test_shards_go_to_those_who_win_them_and_come_back(tmp_path: Path) -> None:
    url, all_shards = f"sqlite:///{tmp_path / 'o.db'}", set(range(8))
    one, two = Instance(1, "one", "ordered", NOW, NOW), Instance(2, "two", "ordered", NOW, NOW)
    settings = quick("one", assignment="rendezvous")
    first = wanted(settings, [one, two], one)
    assert 0 < len(first) < 8, "or the test shows nothing"
    async with AsyncExitStack() as stack:
        box = await stack.enter_async_context(ordered(url, settings, migrate=True))
        await owners(box, {"one": all_shards})
        async with ordered(url, quick("two", assignment="rendezvous")):
            await owners(box, {"one": first, "two": all_shards - first})
        await owners(box, {"one": all_shards})


async def test_static_shards_that_overlap_belong_to_who_came_first(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'o.db'}"
    one = quick("one", assignment="static", static_shards="0-4")
    two = quick("two", assignment="static", static_shards="4-6")
    async with AsyncExitStack() as stack:
        first = await ordered(url, one, migrate=True).__aenter__()
        second = await stack.enter_async_context(ordered(url, two))
        await owners(second, {"one": {0, 1, 2, 3, 4}, "two": {5, 6}})
        await first.close()
        await owners(second, {"two": {4, 5, 6}})
