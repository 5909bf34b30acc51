"""What one process accepts wakes the processors of others: nobody waits for a poll where the database can tell."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from kit import Probe
from relaybox import AsyncInbox, Event, Inbox
from relaybox.engine.wakeups import ThreadNotifier
from relaybox.facts import Delivered, WakeUps

from .effects import QUICK
from .kit import PATIENCE, fresh_url, inbox_url, serving

NEVER = QUICK.replaced({"delivery.poll": "1h"})  # only a wake-up can be in time


async def nothing(event: Event, _: Any) -> None: ...


@pytest.fixture
def pg(tmp_path: Path) -> str:
    return inbox_url("postgres", tmp_path)


@asynccontextmanager
async def resting(url: str) -> AsyncIterator[Probe]:
    """A processor that has looked once, found nothing, and listens."""
    probe = Probe()
    async with AsyncInbox(url) as inbox, serving(inbox, nothing, settings=NEVER, observers=[probe]) as processor:
        await probe.until(lambda: any(fact.mode == "listen" for fact in probe.of(WakeUps)))
        await processor.drain()
        yield probe


def delivered(probe: Probe) -> int:
    return sum(fact.count for fact in probe.of(Delivered))


async def test_another_process_wakes(pg: str) -> None:
    program = "import sys; from relaybox import Event, Inbox\n"
    program += "with Inbox(sys.argv[1]) as inbox:\n    inbox.accept(None, Event('A', 1))\n    sys.stdin.read()"
    async with resting(pg) as probe:
        other = subprocess.Popen([sys.executable, "-c", program, pg], stdin=subprocess.PIPE)
        try:
            await probe.until(lambda: delivered(probe) == 1)
        finally:
            other.communicate(timeout=PATIENCE)


async def test_a_commit_of_the_caller_wakes(pg: str) -> None:
    async with resting(pg) as probe:
        with Inbox(pg) as inbox, psycopg.connect(pg) as handle:
            for n in range(3):
                inbox.accept(handle, Event("A", n))
            handle.commit()
            await probe.until(lambda: delivered(probe) == 3)
        async with AsyncInbox(pg) as inbox, await psycopg.AsyncConnection.connect(pg) as ahandle:
            await inbox.accept(ahandle, Event("A", 3))
            await ahandle.commit()
            await probe.until(lambda: delivered(probe) == 4)


async def test_a_commit_in_another_thread_wakes(pg: str) -> None:
    engine = sa.create_engine(pg.replace("postgresql:", "postgresql+psycopg:"))
    async with resting(pg) as probe:
        with Inbox(pg) as inbox, Session(engine) as session:
            inbox.accept(session, Event("A", 1))
            await asyncio.to_thread(session.commit)
            await probe.until(lambda: delivered(probe) == 1)
    engine.dispose()


async def test_operators_wake_too(pg: str) -> None:
    async with resting(pg) as probe, AsyncInbox(pg) as inbox:
        await inbox.accept(None, Event("A", 1, id="m"))
        await probe.until(lambda: delivered(probe) == 1)
        assert await inbox.events.replay("m") == 1
        await probe.until(lambda: delivered(probe) == 2)


async def test_nobody_is_told_when_nobody_listens(pg: str) -> None:
    with Inbox(pg) as inbox:
        assert isinstance(inbox._notifier, ThreadNotifier)
        assert not await asyncio.to_thread(inbox._notify)


@pytest.mark.parametrize("server", ["sqlite", "mariadb"])
def test_no_notifier_where_the_database_cannot_tell(server: str, tmp_path: Path) -> None:
    with Inbox(fresh_url(server, tmp_path)) as inbox:
        assert inbox._notifier is None
