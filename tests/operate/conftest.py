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


ENGINES = ("postgres", "sqlite", "mariadb")


def database(engine: str, folder: Path) -> str:
    if engine == "postgres":
        return require("postgres-wheel", durable=False).create_database(_template())
    if engine == "sqlite":
        return _made(f"sqlite:///{folder / 'shop.db'}")
    return _made(require("mariadb", durable=False).create_database())


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return database(request.param, tmp_path)
