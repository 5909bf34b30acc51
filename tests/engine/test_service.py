"""What every background task has in common: it ends when it is told to."""

from __future__ import annotations

import asyncio

import pytest

from relaybox import tasks as service
from relaybox.tasks import cancelled


async def test_a_task_that_lost_its_cancellation_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As asyncio.wait_for loses one, before Python 3.12, when what it waits for ends in the same moment."""
    monkeypatch.setattr(service, "ASK_AGAIN", 0.01)
    lost = 0

    async def deaf() -> None:
        nonlocal lost
        while lost < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1
        await asyncio.Event().wait()

    task = asyncio.create_task(deaf())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await cancelled(task, None)
    assert task.cancelled()
    assert lost == 2
