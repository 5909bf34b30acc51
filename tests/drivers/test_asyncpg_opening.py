"""asyncpg finds out once per URL whether a pooler answers, and again when that changes; and once per process what types
PostgreSQL has."""

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


async def test_postgresqls_own_types_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    url = require("postgres-wheel", durable=False).create_database()
    asked: list[set[int]] = []
    introspect = asyncpg.Connection._introspect_types

    async def counted(connection: asyncpg.Connection, types: set[int], timeout: float | None) -> object:
        asked.append(set(types))
        return await introspect(connection, types, timeout)

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", counted)
    monkeypatch.setattr("relaybox.drivers.asyncpg._met", {})
    for number in range(3):
        connection = await aconnect(url)
        await connection.execute(Query("make", f"CREATE TYPE mood{number} AS ENUM ('glad')", "count").bind())
        moods = Query("moods", f"SELECT ARRAY['glad']::mood{number}[], ARRAY[1, 2]", "rows").bind()
        assert (await connection.execute(moods)).rows == [(["glad"], [1, 2])]
        await connection.close()
    assert len([types for types in asked if max(types) < 10_000]) == 1
    assert len([types for types in asked if max(types) >= 10_000]) == 3  # anybody's types: each has its own number


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
