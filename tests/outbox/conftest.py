"""A fresh, migrated database per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import Probe, make_database, make_postgres
from relaybox.testing.servers import require


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
