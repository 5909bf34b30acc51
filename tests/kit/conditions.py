"""Looking again and again for what another task, process or server does on its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 60.0  # a busy machine is slow; only what never happens takes so long
PAUSE = 0.02
INNODB = 0.12  # MariaDB shows an old list of its transactions to those that look more often


async def until(
    condition: Callable[[], Any], what: str = "what was waited for", *, patience: float = PATIENCE, pause: float = PAUSE
) -> Any:
    """What the condition answers once it is true."""
    deadline = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < deadline, f"no {what} within {patience:g} s"
        await asyncio.sleep(pause)
    return found


async def until_stored(condition: Callable[[], Any], *, patience: float = PATIENCE) -> None:
    """For a condition that asks a server: in a thread, so that the event loop goes on meanwhile."""
    deadline = time.monotonic() + patience
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, f"not so within {patience:g} s"
        await asyncio.sleep(PAUSE)


def wait_until(
    condition: Callable[[], Any], what: str = "what was waited for", *, patience: float = PATIENCE, pause: float = PAUSE
) -> Any:
    """`until` without an event loop."""
    deadline = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < deadline, f"no {what} within {patience:g} s"
        time.sleep(pause)
    return found
