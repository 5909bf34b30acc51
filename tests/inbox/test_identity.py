"""A message is known by its id and its sender: what one sender does, no other's messages suffer for."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from relaybox import AsyncInbox, Event, Inbox, Where
from relaybox.errors import ConfigError

from .kit import Twin

SENDERS = ("shop", "mallory", "Shop", "ßhop", "")


def placed(number: int, event_id: str) -> Event:
    return Event("Placed", {"n": number}, id=event_id, key=f"k{number}")


def known(number: int) -> Event:
    return placed(number, f"id-{number}")


async def test_two_senders_may_use_the_same_id(url: str, is_async: bool) -> None:
    seen: list[tuple[str, str]] = []
    async with Twin(url, is_async=is_async) as inbox:
        for sender in SENDERS:
            assert await inbox.call("accept", None, placed(1, "4711"), sender=sender) is True
            assert await inbox.call("accept", None, placed(1, "4711"), sender=sender) is False
        await inbox.process(lambda event, _: seen.append((event.sender, event.id)))
        assert Counter(seen) == Counter((sender, "4711") for sender in SENDERS)
        for sender in SENDERS:  # processed, and known all the same
            assert await inbox.call("accept", None, placed(1, "4711"), sender=sender) is False
        await inbox.process(lambda event, _: seen.append((event.sender, event.id)))
    assert len(seen) == len(SENDERS)


async def test_in_batches(url: str, is_async: bool) -> None:
    events = [placed(n, f"id-{n}") for n in range(40)]
    seen: list[tuple[str, str]] = []
    async with Twin(url, is_async=is_async) as inbox:
        assert await inbox.call("accept_all", None, events[::2], sender="mallory") == [True] * 20
        given = [event for event in events for _ in range(2)]
        assert await inbox.call("accept_all", None, given, sender="shop") == [True, False] * 40
        assert await inbox.call("accept_all", None, events, sender="shop") == [False] * 40
        new = [n % 2 == 1 for n in range(40)]
        assert await inbox.call("accept_all", None, events, sender="mallory") == new
        assert await inbox.call("accept_all", None, events, sender="mallory") == [False] * 40
        await inbox.process(lambda event, _: seen.append((event.sender, event.id)))
    assert Counter(seen) == Counter((sender, event.id) for sender in ("shop", "mallory") for event in events)


async def test_a_stranger_who_knows_the_id_does_not_take_it(url: str, is_async: bool) -> None:
    """Sent before it, with it, after it, and when it was purged: the genuine message is processed once."""
    genuine, forged = placed(1, "order-1"), Event("Forged", {"n": 0}, id="order-1", key="k1")
    seen: list[tuple[str, str]] = []

    def handle(event: Event[Any], _: Any) -> None:
        seen.append((event.sender, event.type))

    async with Twin(url, is_async=is_async) as inbox:
        assert await inbox.call("accept", None, forged, sender="mallory") is True
        assert await inbox.call("accept", None, genuine, sender="shop") is True
        assert await inbox.call("accept_all", None, [forged, forged], sender="mallory") == [False, False]
        await inbox.process(handle)
        assert sorted(seen) == [("mallory", "Forged"), ("shop", "Placed")]
        assert await inbox.call("purge", done=0) == 2
        assert await inbox.call("accept", None, forged, sender="eve") is True
        assert await inbox.call("accept", None, genuine, sender="shop") is False
        assert await inbox.call("accept", None, forged, sender="mallory") is False


async def test_ids_are_forgotten_sender_by_sender(url: str, is_async: bool) -> None:
    async with Twin(url, is_async=is_async) as inbox:
        await inbox.call("accept", None, placed(1, "a"), sender="shop")
        await inbox.process(lambda event, _: None)
        await inbox.call("accept", None, placed(1, "a"), sender="other")  # its message is here
        assert await inbox.call("purge", done=0, seen=0) == 1  # and its id, which is another's too
        assert await inbox.call("accept", None, placed(1, "a"), sender="other") is False
        assert await inbox.call("accept", None, placed(1, "a"), sender="shop") is True


async def test_operators_name_the_sender(url: str, is_async: bool) -> None:
    async with Twin(url, is_async=is_async) as inbox:
        for sender in ("shop", "mallory"):
            await inbox.call("accept", None, placed(1, "a"), sender=sender)
        assert {(e.event.sender) for e in await inbox.call("events.list", Where(ids=["a"]))} == {"shop", "mallory"}
        found = await inbox.call("events.get", "a", sender="shop")
        assert (found.event.sender, found.event.id) == ("shop", "a")
        assert await inbox.call("events.get", "a", sender="nobody") is None
        assert await inbox.call("events.discard", Where(sender="mallory"), reason="forged") == 1
        assert [e.event.sender for e in await inbox.call("events.list", state="open")] == ["shop"]
        assert await inbox.call("accept", None, placed(1, "a"), sender="mallory") is False


async def test_names_that_no_sender_can_have(url: str, is_async: bool) -> None:
    async with Twin(url, is_async=is_async) as inbox:
        for name in ("*", "x" * 256, "a\nb", " shop", "shop "):
            with pytest.raises(ConfigError, match="sender"):
                await inbox.call("accept", None, placed(1, "a"), sender=name)
        assert (await inbox.call("status")).seen == 0


def test_what_arrives_at_once_from_several(url: str) -> None:
    """Threads whose messages are accepted together share statements, and nothing else."""
    with Inbox(url) as inbox:
        inbox.accept(None, placed(0, "first"))  # from here on one statement each, where that can be
        jobs = [(sender, n) for n in range(60) for sender in ("shop", "mallory") for _ in range(2)]
        with ThreadPoolExecutor(12) as threads:
            answers = list(threads.map(lambda job: inbox.accept(None, known(job[1]), sender=job[0]), jobs))
        accepted = Counter(job for job, new in zip(jobs, answers, strict=True) if new)
    assert accepted == Counter(dict.fromkeys(jobs, 1))


async def test_what_arrives_at_once_in_a_loop(url: str) -> None:
    async with AsyncInbox(url) as inbox:
        await inbox.accept(None, placed(0, "first"))
        jobs = [(sender, n) for n in range(60) for sender in ("shop", "mallory") for _ in range(2)]
        answers = await asyncio.gather(*(inbox.accept(None, placed(n, f"id-{n}"), sender=who) for who, n in jobs))
        accepted = Counter(job for job, new in zip(jobs, answers, strict=True) if new)
    assert accepted == Counter(dict.fromkeys(jobs, 1))
