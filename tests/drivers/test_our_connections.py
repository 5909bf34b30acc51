"""The client's own connection in a transaction of ours is a handle as any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit import make_database, with_driver
from relaybox import AsyncOutbox, Event, Outbox


@pytest.mark.parametrize("engine", ["postgres", "sqlite", "mariadb"])
def test_of_an_outbox(engine: str, tmp_path: Path) -> None:
    with Outbox(make_database(engine, tmp_path)) as box, box.transaction() as tx:
        assert box.write(tx.connection, Event("A", None)) is not None


@pytest.mark.parametrize(
    ("engine", "driver"),
    [("postgres", "asyncpg"), ("postgres", "psycopg"), ("sqlite", "aiosqlite"), ("mariadb", "asyncmy")],
)
async def test_of_an_asynchronous_outbox(engine: str, driver: str, tmp_path: Path) -> None:
    async with AsyncOutbox(with_driver(make_database(engine, tmp_path), driver)) as box, box.transaction() as tx:
        assert await box.write(tx.connection, Event("A", None)) is not None
