"""Outboxes with events in them, on every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from kit import migrated
from relaybox import Event
from relaybox.testing import Probe
from relaybox.testing.servers import require

Write = Callable[[Sequence[Event]], None]


@pytest.fixture
def probe() -> Probe:
    return Probe()


@pytest.fixture(params=["postgres", "sqlite", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        made = f"sqlite:///{tmp_path}/outbox.db"
    else:
        kind = {"postgres": "postgres-wheel", "mariadb": "mariadb"}[request.param]
        made = require(kind, durable=False).create_database()  # type: ignore[attr-defined]
    with migrated(made):
        pass
    return made


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    made = f"sqlite:///{tmp_path}/outbox.db"
    with migrated(made):
        pass
    return made
