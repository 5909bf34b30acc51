"""A database with an outbox and a vault, on every engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit import make_database

from .kit import Home


@pytest.fixture(params=["postgres", "sqlite", "mysql"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    return Home(make_database(request.param, tmp_path))


@pytest.fixture
def sqlite(tmp_path: Path) -> Home:
    return Home(make_database("sqlite", tmp_path))


@pytest.fixture
def postgres(tmp_path: Path) -> Home:
    return Home(make_database("postgres", tmp_path))
