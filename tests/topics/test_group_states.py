"""A push group's state as its process hears of it: by its own deeds, and by heartbeats."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kit import until
from relaybox import AsyncOutbox, Event
from relaybox.errors import GroupError

from .test_group import QUICK, process

PATIENT = QUICK.replaced({"delivery.instance_ttl": "6s", "delivery.lease": "20s"})  # of heartbeats held back


async def test_a_heartbeat_from_before_a_resume_does_not_undo_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It heard that the group is paused, and its answer came when the group was resumed."""
    handled = asyncio.Event()

    async def handle(event: Event) -> None:
        handled.set()

    async with process(settings=PATIENT) as here, here.deliver(handle) as service, asyncio.timeout(20):
        group = here.group()
        await group.pause()
        beats = here.box.topics._context.heartbeats
        beats.held = True  # but for one
        asked, answer = asyncio.Event(), asyncio.Event()
        run = beats._beats.run

        async def late(op: Any, **options: Any) -> Any:
            found = await run(op, **options)
            asked.set()
            await answer.wait()
            return found

        monkeypatch.setattr(beats._beats, "run", late)
        beat = asyncio.create_task(beats.beat())
        await asked.wait()
        await group.resume()
        answer.set()
        await beat
        delivering: Any = service._member  # type: ignore[attr-defined]
        assert delivering._membership.state == "active"
        assert delivering.engine._may_claim.is_set(), "it was paused by what is over"
        beats.held = False
        await here.write(1)
        await handled.wait()


async def test_a_pause_elsewhere_soon_after_a_resume_here_is_heard() -> None:
    """No heartbeat came between the two: the last one had said that the group is paused."""
    at_it, go_on = asyncio.Event(), asyncio.Event()

    async def slow(event: Event) -> None:
        at_it.set()
        await go_on.wait()

    async with process(settings=PATIENT) as here, here.deliver(slow) as service, asyncio.timeout(20):
        group = here.group()
        await group.pause()
        delivering: Any = service._member  # type: ignore[attr-defined]
        await until(lambda: delivering._membership.state == "paused")
        beats = here.box.topics._context.heartbeats
        beats.held = True
        await group.resume()
        await here.write(1)
        await at_it.wait()
        async with AsyncOutbox(here.url) as elsewhere:
            await elsewhere.topics.group("orders", "g").pause()
        beats.held = False
        with pytest.raises(GroupError, match="is paused"):
            await service.drain()
        go_on.set()
