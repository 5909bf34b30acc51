"""A fresh database per test, with the tables of an outbox and of an inbox, on every engine."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from relaybox import Inbox, Outbox
from relaybox.testing.servers import require


def _made(url: str) -> str:
    with Outbox(url) as outbox:
        outbox.migrate()
    inbox = Inbox(url)
    inbox.migrate()
    inbox.close()
    return url


@cache
def _template() -> str:
    return _made(require("postgres-wheel", durable=False).create_database())


@pytest.fixture(params=["postgres", "sqlite", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return require("postgres-wheel", durable=False).create_database(_template())
    if request.param == "sqlite":
        return _made(f"sqlite:///{tmp_path / 'shop.db'}")
    return _made(require("mariadb", durable=False).create_database())
