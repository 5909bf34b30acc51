"""asyncpg finds out once per URL whether a pooler answers, and again when that changes."""

from __future__ import annotations

from urllib.parse import urlsplit

import asyncpg
import pytest

from relaybox.drivers.asyncpg import aconnect
from relaybox.errors import StoreError
from relaybox.op import Query
from relaybox.testing.servers import require
from relaybox.testing.servers.gate import TcpGate

PID = Query("test", "SELECT pg_backend_pid()", "rows").bind()


def port(url: str) -> int:
    return urlsplit(url).port or 0


async def test_a_server_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    url = require("postgres-wheel", durable=False).create_database()
    made = 0
    connect = asyncpg.connect

    async def counted(*args: object, **named: object) -> object:
        nonlocal made
        made += 1
        return await connect(*args, **named)

    monkeypatch.setattr(asyncpg, "connect", counted)
    for expected in (2, 3, 4):
        await (await aconnect(url)).close()
        assert made == expected


async def test_a_pooler_that_takes_the_place_of_a_server_is_noticed() -> None:
    bouncer = require("pgbouncer", durable=False)
    direct = bouncer.postgres.create_database()
    pooled = bouncer.url(direct)
    with TcpGate(port(direct)) as gate:
        url = gate.through(pooled)
        server = await aconnect(url)
        assert not server._pooled
        await server.close()
        gate.target_port = port(pooled)
        with pytest.raises(StoreError):
            await aconnect(url)
        connection = await aconnect(url)
        assert connection._pooled
        assert (await connection.execute(PID)).rows[0][0] > 0
        await connection.close()
