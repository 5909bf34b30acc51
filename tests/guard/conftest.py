"""Places for marks: one fresh per test."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaybox.testing.servers import require

from .kit import Place

SQL = ("postgres", "sqlite", "mariadb")


def make_place(kind: str, folder: Path) -> Place:
    if kind == "redis":
        return Place(kind, require("redis", durable=False).fresh_url())
    if kind == "sqlite":
        place = Place(kind, f"sqlite:///{folder / 'guard.db'}")
    else:
        server = require("postgres-wheel" if kind == "postgres" else "mariadb", durable=False)
        place = Place(kind, server.create_database())
    place.migrate()
    return place


@pytest.fixture(params=["redis", *SQL])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return make_place(request.param, tmp_path)


@pytest.fixture(params=SQL)
def sql(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return make_place(request.param, tmp_path)


@pytest.fixture
def redis_place(tmp_path: Path) -> Place:
    return make_place("redis", tmp_path)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def is_async(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)
