"""What every guard promises, wherever its marks are: sync and async, Redis and three databases."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from relaybox import AsyncGuard, ConfigError, Event, Guard, Settings
from relaybox.errors import Closed, InProgress, LeaseLost

from .kit import EffectFailed, Place, deliver, fail, until


async def test_the_first_delivery_handles_and_a_duplicate_does_not(place: Place, is_async: bool) -> None:
    async with place.open(is_async=is_async) as guard:
        async with guard("m1") as first:
            assert first
            assert place.state("m1") == "in-progress"
        assert place.state("m1") == "done"
        async with guard("m1") as first:
            assert not first
        async with guard("m2") as first:
            assert first


async def test_a_failure_takes_the_mark_back(place: Place, is_async: bool) -> None:
    async with place.open(is_async=is_async) as guard:
        with pytest.raises(EffectFailed):
            await deliver(guard, "m1", fail)
        assert place.state("m1") is None
        async with guard("m1") as first:
            assert first


async def test_an_error_on_a_duplicate_leaves_the_mark(place: Place, is_async: bool) -> None:
    async with place.open(is_async=is_async) as guard:
        async with guard("m1"):
            pass
        with pytest.raises(EffectFailed):
            async with guard("m1"):
                raise EffectFailed
        assert place.state("m1") == "done"


async def test_a_duplicate_that_meets_work_in_progress_is_not_acknowledged(place: Place, is_async: bool) -> None:
    """Were it acknowledged and the first then failed, the message would be lost."""

    async def duplicate() -> None:
        with pytest.raises(InProgress) as met:
            await deliver(other, "m1", lambda: pytest.fail("entered"))
        assert (met.value.consumer, met.value.key) == ("email", "m1")

    async with place.open(is_async=is_async) as guard, place.open(is_async=not is_async) as other:
        with pytest.raises(EffectFailed):
            await deliver(guard, "m1", duplicate, fail)
        async with other("m1") as first:
            assert first


async def test_of_many_at_once_one_is_first(place: Place) -> None:
    outcomes: list[str] = []
    all_tried = asyncio.Event()

    def tried(outcome: str) -> None:
        outcomes.append(outcome)
        if len(outcomes) == 8:
            all_tried.set()

    async def attempt(guard: AsyncGuard) -> None:
        try:
            async with guard("m1") as first:
                assert first
                tried("first")
                await all_tried.wait()  # nobody may find it done
        except InProgress:
            tried("in progress")

    async with async_guard(place) as guard:
        await asyncio.wait_for(asyncio.gather(*(attempt(guard) for _ in range(8))), 20)
    assert sorted(outcomes) == ["first"] + ["in progress"] * 7


def async_guard(place: Place) -> AsyncGuard:
    guard = place.open(is_async=True).raw
    assert isinstance(guard, AsyncGuard)
    return guard


async def test_each_consumer_has_its_own_marks(place: Place, is_async: bool) -> None:
    async with place.open(is_async=is_async) as email, place.open(is_async=is_async, consumer="search") as search:
        async with email("m1") as first:
            assert first
            async with search("m1") as first:
                assert first
        async with search("m1") as first:
            assert not first


async def test_the_lease_is_renewed_while_the_block_runs(place: Place, is_async: bool) -> None:
    """Three renewals are a lease: without them the mark would be gone by the third."""
    async with place.open(is_async=is_async, lease="1200ms") as guard, place.open() as other:
        async with guard("m1"):
            for _ in range(4):
                seen = place.until("m1")
                await until(lambda seen=seen: place.until("m1") > seen, "renewal")
            with pytest.raises(InProgress):
                async with other("m1"):
                    pytest.fail("entered")
        async with other("m1") as first:
            assert not first


async def test_what_was_lost_cannot_be_finished(place: Place, is_async: bool) -> None:
    async with place.open(is_async=is_async) as guard:
        with pytest.raises(LeaseLost, match="another delivery may have handled it too"):
            await deliver(guard, "m1", lambda: place.steal("m1"))
        assert place.mark("m1") in (("in-progress", "beef"), ("in-progress", "48879"))


async def test_what_was_lost_cannot_be_deleted(place: Place, is_async: bool) -> None:
    async with place.open(is_async=is_async) as guard:
        with pytest.raises(EffectFailed):
            await deliver(guard, "m1", lambda: place.steal("m1"), fail)
        assert place.state("m1") == "in-progress"


async def test_a_lease_that_ended_unnoticed_is_no_loss(place: Place, is_async: bool) -> None:
    """The effect has happened and nobody else is at it: marking it is right."""
    async with place.open(is_async=is_async) as guard:
        await deliver(guard, "m1", lambda: place.forget("m1"))
        async with guard("m1") as first:
            assert not first


async def test_a_lost_lease_is_told_in_the_log(place: Place, caplog: pytest.LogCaptureFixture, is_async: bool) -> None:
    async def told() -> None:
        await until(lambda: "was lost while it was handled" in caplog.text, "log line")

    async with place.open(is_async=is_async, lease="300ms") as guard:
        with pytest.raises(LeaseLost):
            await deliver(guard, "m1", lambda: place.steal("m1"), told)


async def test_cancelling_takes_the_mark_back(place: Place) -> None:
    inside = asyncio.Event()

    async def endless() -> None:
        async with guard("m1"):
            inside.set()
            await asyncio.Event().wait()

    async with async_guard(place) as guard:
        task = asyncio.create_task(endless())
        await asyncio.wait_for(inside.wait(), 20)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert place.state("m1") is None


# -- the decorator -----------------------------------------------------------------------------------


async def test_once(place: Place, is_async: bool) -> None:
    sent: list[str] = []
    async with place.open(is_async=is_async) as guard:
        if is_async:

            @guard.raw.once(key=lambda message: message["id"])
            async def handle(message: dict[str, str]) -> str:
                sent.append(message["id"])
                return "sent"
        else:

            @guard.raw.once(key=lambda message: message["id"])
            def handle(message: dict[str, str]) -> str:
                sent.append(message["id"])
                return "sent"

        results = [handle({"id": key}) for key in ("a", "a", "b")]
        if is_async:
            results = [await result for result in results]
        assert results == ["sent", None, "sent"]
        assert sent == ["a", "b"]
        assert handle.__name__ == "handle"


async def test_once_knows_an_event_by_its_id(place: Place, is_async: bool) -> None:
    event = Event("OrderPlaced", {"id": 7})
    async with place.open(is_async=is_async) as guard:
        async with guard(event) as first:
            assert first
        assert place.state(event.id) == "done"
        if is_async:

            @guard.raw.once()
            async def handle(event: Event) -> None:
                pytest.fail("handled twice")

            await handle(event)
        else:

            @guard.raw.once()
            def handle(event: Event) -> None:
                pytest.fail("handled twice")

            handle(event)


async def test_once_takes_only_functions_of_its_kind(place: Place) -> None:
    async def coroutine() -> None: ...

    def plain() -> None: ...

    async with place.open() as guard, place.open(is_async=True) as asynchronous:
        with pytest.raises(ConfigError, match="use AsyncGuard"):
            guard.raw.once()(coroutine)
        with pytest.raises(ConfigError, match="use Guard"):
            asynchronous.raw.once()(plain)


# -- the plain mode ----------------------------------------------------------------------------------


async def test_the_plain_mode_marks_before_the_effect(place: Place, is_async: bool) -> None:
    async with place.open(is_async=is_async, mode="setnx") as guard:
        assert await guard.call("try_mark", "m1") is True
        assert place.state("m1") == "done"
        assert await guard.call("try_mark", "m1") is False
        await guard.call("forget", "m1")
        assert await guard.call("try_mark", "m1") is True


async def test_the_plain_mode_as_a_block(place: Place, is_async: bool) -> None:
    async with place.open(is_async=is_async, mode="setnx") as guard:
        states: list[str | None] = []
        with pytest.raises(EffectFailed):
            await deliver(guard, "m1", lambda: states.append(place.state("m1")), fail)
        assert states == ["done"]
        assert place.state("m1") is None
        async with guard("m1") as first:
            assert first
        async with guard("m1") as first:
            assert not first


async def test_the_modes_understand_each_others_marks(place: Place) -> None:
    """A consumer may change its mode while marks are there."""
    async with place.open() as careful, place.open(mode="setnx") as plain:
        async with plain("m1"):
            pass
        async with careful("m1") as first:
            assert not first
        async with careful("m2"):
            pass
        assert await plain.call("try_mark", "m2") is False


async def test_the_plain_verbs_are_refused_elsewhere(place: Place) -> None:
    async with place.open() as guard:
        for verb in ("try_mark", "forget"):
            with pytest.raises(ConfigError, match="mode='setnx'"):
                await guard.call(verb, "m1")
        assert place.state("m1") is None


# -- keys, options, closing --------------------------------------------------------------------------

ALIKE = [
    "key",
    "Key",
    "key ",
    " key",
    "ké",
    "ke\u0301",
    "key:1",
    "日本",
    "🔑",
    "k'ey",
    "k%sey",
    'k"ey',
    "k\\ey",
    "k" * 255,
]


async def test_keys_that_look_alike_are_different(place: Place, is_async: bool) -> None:
    async with place.open(is_async=is_async) as guard:
        for key in ALIKE:
            async with guard(key) as first:
                assert first, key
        for key in ALIKE:
            async with guard(key) as first:
                assert not first, key


@pytest.mark.parametrize("key", ["", "k" * 256, "nul\x00", "lone\ud800", b"bytes", 7, None])
async def test_a_key_that_no_place_could_keep_is_refused(place: Place, key: Any) -> None:
    async with place.open() as guard:
        with pytest.raises(ConfigError, match="the key of a message"):
            async with guard(key):
                pytest.fail("entered")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"consumer": ""}, "consumer"),
        ({"consumer": "a:b"}, "no colon"),
        ({"consumer": "c" * 65}, "64"),
        ({"ttl": "soon"}, "duration"),
        ({"ttl": "10s", "lease": "10s"}, "lease < ttl"),
        ({"ttl": "4000d"}, "3650d"),
        ({"lease": 0}, "1ms"),
        ({"mode": "hope"}, "two-phase, setnx"),
    ],
)
async def test_options_are_checked_when_the_guard_is_made(place: Place, options: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        place.open(**options)


async def test_a_closed_guard_refuses(place: Place, is_async: bool) -> None:
    guard = place.open(is_async=is_async)
    async with guard("m1"):
        pass
    await guard.call("close")
    await guard.call("close")
    with pytest.raises(Closed):
        async with guard("m2"):
            pytest.fail("entered")


async def test_the_repr_shows_no_address(place: Place, is_async: bool) -> None:
    async with place.open(is_async=is_async) as guard:
        kind = "redis" if place.kind == "redis" else "sql"
        name = "AsyncGuard" if is_async else "Guard"
        assert repr(guard.raw) == f"{name}.{kind}(consumer='email', mode='two-phase')"


# -- how long marks live -----------------------------------------------------------------------------


def test_a_ttl_shorter_than_retention_is_told(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "relaybox")
    guard = place.open(ttl="720h").raw
    findings = guard.check_retention(outbox_retention="31d", inbox_retention="30d", dead_retention=None)
    assert [(finding.check, finding.level) for finding in findings] == [
        ("outbox_retention", "warning"),
        ("inbox_retention", "ok"),
        ("dead_retention", "warning"),
    ]
    assert findings[0].fix == "set ttl to 31d"
    assert "unlimited" in findings[2].text
    assert [record.message.count("handled again") for record in caplog.records] == [1, 1]
    if isinstance(guard, Guard):
        guard.close()


def test_covers_warns_when_the_guard_is_made(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.open(ttl="1h", covers="1h").raw.close()
    assert caplog.text == ""
    place.open(ttl="1h", covers="2h").raw.close()
    assert "remembers for 1h and covers is 2h" in caplog.text


@pytest.mark.parametrize(
    ("environment", "hours"),
    [
        ({}, 720),
        ({"RELAYBOX_GUARD_TTL": "48h"}, 48),
        ({"RELAYBOX_GUARD_TTL": "PT96H"}, 96),
    ],
)
def test_the_ttl_may_come_from_the_environment(place: Place, environment: dict[str, str], hours: int) -> None:
    for ttl, expected in ((None, hours), ("1h", 1)):
        guard = place.open(ttl=ttl, settings=Settings.load(environment=environment)).raw
        assert guard.terms.ttl.total_seconds() == expected * 3600
        guard.close()
