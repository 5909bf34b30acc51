"""Databases of Django's settings, on every engine that tests have."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import django
from django.conf import settings

if not settings.configured:
    settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
    django.setup()

from django.db import connections, transaction

from relaybox.drivers import open_sync, wrap
from relaybox.event import Event
from relaybox.op import run
from relaybox.store.claims import Claim
from relaybox.testing.servers import require

T0 = datetime(2031, 1, 1, tzinfo=UTC)


def register(alias: str, **database: Any) -> None:
    """Add a database as settings.DATABASES would have."""
    connections.databases[alias] = connections.configure_settings({"default": database})["default"]


@cache
def postgres_url() -> str:
    return require("postgres-wheel", durable=False).create_database()


def postgres_settings() -> dict[str, Any]:
    parts = urlsplit(postgres_url())
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname,
        "PORT": parts.port,
    }


class Place:
    """One Django database with its store."""

    def __init__(self, alias: str, store: Any) -> None:
        self.alias = alias
        self.store = store
        self.own = open_sync(connections[alias])
        self.own.run(store.migrate())
        self.calls: list[str] = []

    @property
    def connection(self) -> Any:
        return connections[self.alias]

    def atomic(self) -> Any:
        return transaction.atomic(using=self.alias)

    def put(self, *events: Event, claim: Claim | None = None) -> None:
        adapter = wrap(self.connection)
        assert not adapter.is_async
        run(self.store.write(events or [Event("A", None)], claim, T0), adapter)

    def listen(self, name: str = "commit") -> None:
        assert wrap(self.connection).after_commit(lambda: self.calls.append(name))

    def stored(self, *ids: str) -> set[str]:
        return self.own.run(self.store.stored(ids))
