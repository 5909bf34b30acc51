"""What several tests of drivers need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(params=["postgres", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    from django.db import connections
    from django_places import Place, postgres_settings, register

    from relaybox.store.names import Tables
    from relaybox.store.outbox.postgres import PostgresStore
    from relaybox.store.outbox.sqlite import SqliteStore

    alias = f"relaybox_{request.param}"
    if request.param == "postgres":
        register(alias, **postgres_settings())
        store: Any = PostgresStore(Tables(f"t{abs(hash(request.node.name)) % 10**9}"))
    else:
        register(alias, ENGINE="django.db.backends.sqlite3", NAME=tmp_path / "x.db")
        store = SqliteStore()
    place = Place(alias, store)
    yield place
    place.own.close()
    connections[alias].close()
    del connections[alias]
    del connections.databases[alias]
