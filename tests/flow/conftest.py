"""A fresh, migrated database per test: copied from a template where the engine can."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from relaybox import Outbox
from relaybox.testing.servers import require

from .kit import Probe, sqlite_url


@cache
def _template(kind: str) -> str:
    url = require(kind, durable=False).create_database()
    box = Outbox(url)
    box.migrate()
    with box.transaction() as tx:
        tx.connection.execute("CREATE TABLE business (n bigint)")
    box.close()
    return url


def make_postgres(kind: str = "postgres-wheel", *, migrated: bool = True) -> str:
    server = require(kind, durable=False)
    return server.create_database(_template(kind) if migrated else None)


def make_database(engine: str, folder: Path, *, migrated: bool = True) -> str:
    if engine == "postgres":
        return make_postgres(migrated=migrated)
    url = sqlite_url(folder) if engine == "sqlite" else require("mariadb", durable=False).create_database()
    if migrated:
        box = Outbox(url)
        box.migrate()
        with box.transaction() as tx:
            tx.connection.cursor().execute("CREATE TABLE business (n bigint)")
        box.close()
    return url


@pytest.fixture
def probe() -> Probe:
    return Probe()


@pytest.fixture
def pg() -> Iterator[str]:
    url = make_postgres()
    yield url
    require("postgres-wheel", durable=False).drop_database(url)


@pytest.fixture(params=["postgres", "sqlite", "mariadb"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(engine: str, tmp_path: Path) -> str:
    """A migrated database on each engine in turn."""
    return make_database(engine, tmp_path)


@pytest.fixture
def bare_url(engine: str, tmp_path: Path) -> str:
    """A database without our tables."""
    return make_database(engine, tmp_path, migrated=False)
