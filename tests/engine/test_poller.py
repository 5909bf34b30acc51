"""When an engine counts as idle."""

from __future__ import annotations

import asyncio

from relaybox.engine.poller import Poller


async def test_what_woke_during_a_look_is_looked_for_before_the_poller_is_idle() -> None:
    """A key's next event may have become free after the look for it, and before the end of the look at the rest."""
    poller = Poller(1, 10)
    waiting = asyncio.create_task(poller.until_idle())
    await asyncio.sleep(0)
    poller.begin()
    poller.wake()
    poller.ended(found=False, empty=True)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    poller.begin()
    poller.ended(found=False, empty=True)
    await asyncio.wait_for(waiting, 10)


async def test_the_question_itself_does_not_keep_a_slow_poller_from_being_idle() -> None:
    """`until_idle` asks for looks more often than a slow database answers one."""
    poller = Poller(1, 10)
    waiting = asyncio.create_task(poller.until_idle())
    poller.begin()
    while not poller.woken:  # it has asked again
        await asyncio.sleep(0.001)
    poller.ended(found=False, empty=True)
    await asyncio.wait_for(waiting, 10)
