"""A fresh inbox per test, on every engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from .kit import ENGINES, inbox_url


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(engine: str, tmp_path: Path) -> str:
    return inbox_url(engine, tmp_path)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def is_async(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)
