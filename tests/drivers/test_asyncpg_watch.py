"""How commits of a caller's asyncpg connection are seen: what is kept for it goes with the connection."""

from __future__ import annotations

import gc
import weakref

import asyncpg

from relaybox import AsyncOutbox, Event
from relaybox.spi import WriterHook
from relaybox.testing.servers import require


class Hook(WriterHook):
    """So that the outbox wants to know of the commit."""


async def test_connections_that_events_were_written_through_are_freed() -> None:
    url = require("postgres-wheel", durable=False).create_database()
    known = []
    async with AsyncOutbox(url, hooks=[Hook()]) as box:
        await box.migrate()
        for n in range(3):
            connection = await asyncpg.connect(url)
            async with connection.transaction():
                await box.write(connection, Event("T", n))
            await connection.close()
            known.append(weakref.ref(connection))
            del connection
        gc.collect()
        assert [one() for one in known] == [None] * 3
