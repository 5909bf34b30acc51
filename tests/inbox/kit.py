"""One face for Inbox and AsyncInbox, and a look into their tables past relaybox."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from kit import rows
from relaybox import AsyncInbox, Delivery, Event, Inbox, Settings
from relaybox.facts import Observers
from relaybox.inbox.source import InboxSource
from relaybox.op import Op
from relaybox.store.events import Kind
from relaybox.testing.servers import require
from relaybox.types import BlockedKey, Counts, Order, Priority

ENGINES = ("postgres", "sqlite", "mariadb")
PATIENCE = 20.0
# How many sessions wait for a lock that another transaction holds.
WAITING = {
    "postgres": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
    "mariadb": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}


def fresh_url(engine: str, folder: Path) -> str:
    if engine == "sqlite":
        return f"sqlite:///{folder / 'inbox.db'}"
    return require("postgres-wheel" if engine == "postgres" else "mariadb", durable=False).create_database()


def migrated(url: str, name: str = "inbox") -> str:
    with Inbox(url, name) as inbox:
        inbox.migrate()
    return url


@cache
def _template() -> str:
    return migrated(require("postgres-wheel", durable=False).create_database())


def inbox_url(engine: str, folder: Path) -> str:
    """Of a database with a fresh inbox."""
    if engine == "postgres":
        return require("postgres-wheel", durable=False).create_database(_template())
    return migrated(fresh_url(engine, folder))


def agreed(
    url: str, name: str = "inbox", *, order: Order | None = None, priority: Priority | None = None, **options: Any
) -> Inbox:
    """An inbox whose processes have agreed on this."""
    inbox = Inbox(url, name, **options)
    if order is not None:
        inbox.configure(order=order)
    if priority is not None:
        inbox.configure(priority=priority)
    return inbox


def serving(inbox: Any, handler: Any, *, settings: Settings | None = None, observers: Any = (), **options: Any) -> Any:
    """Its service, with settings and observers for what this test is about."""
    inbox.settings = settings or inbox.settings
    inbox._observers = Observers(observers)
    return inbox.process(handler, **options)


def processed(inbox: Inbox, handler: Any, *, limit: int | None = None, **options: Any) -> Counts:
    """What is due now, or as much as is claimed of it up to the limit."""
    with claiming(limit):
        return serving(inbox, handler, **options).once()  # type: ignore[no-any-return]


async def aprocessed(inbox: AsyncInbox, handler: Any, *, limit: int | None = None, **options: Any) -> Counts:
    with claiming(limit):
        return await serving(inbox, handler, **options).once()  # type: ignore[no-any-return]


@contextmanager
def claiming(limit: int | None) -> Iterator[None]:
    """No more than so many are claimed by services of this process."""
    if limit is None:
        yield
        return
    claim, left = InboxSource.claim, limit

    async def few(self: InboxSource, room: int, past: Any = ()) -> list[Delivery]:
        nonlocal left
        found = await claim(self, min(room, left), past) if left else []
        left -= len(found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InboxSource, "claim", few)
        yield


class Twin:
    """A sync inbox is used in place, as its handles must be."""

    def __init__(
        self, url: str, name: str = "inbox", *, is_async: bool, order: Order | None = None, **options: Any
    ) -> None:
        with agreed(url, name, order=order):
            self.raw: Any = (AsyncInbox if is_async else Inbox)(url, name, **options)

    async def process(self, handler: Any, **options: Any) -> Counts:
        if isinstance(self.raw, AsyncInbox):
            return await aprocessed(self.raw, handler, **options)
        return processed(self.raw, handler, **options)

    async def call(self, name: str, *args: Any, **options: Any) -> Any:
        result = attrgetter(name)(self.raw)(*args, **options)
        return await result if isinstance(self.raw, AsyncInbox) else result

    async def __aenter__(self) -> Twin:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.call("close")


def gaps(inbox: Inbox, limit: int = 1000) -> list[BlockedKey]:
    """Runs of numbers that are missing."""
    return [blocked for blocked in inbox.keys.list(limit) if blocked.cause != "retry"]


def expected(inbox: Inbox, key: str) -> int | None:
    """The next number of a key; None: nothing of it was processed yet."""
    return inbox._db.run(inbox.store.expected(key), tx=False)


def replayed(inbox: Inbox, kind: Kind, event_id: str) -> Op[int]:
    """One message, as a part of a transaction that the test has begun."""
    store = inbox.store
    _, now = yield from store.newest(None)
    return (yield from store.replay(kind, (yield from store.numbers_of([event_id], None)), now, None))


def arrived(n: int, **options: Any) -> Event:
    return Event("OrderPlaced", {"n": n}, **options)


def message_ids(url: str, name: str = "inbox") -> list[str]:
    """In the order of arrival."""
    return [row[0] for row in rows(url, f"SELECT event_id FROM {name} WHERE payload IS NOT NULL ORDER BY seq")]


def pending_ids(url: str, name: str = "inbox") -> list[str]:
    joined = f"{name}_pending p JOIN {name} m ON m.seq = p.seq"
    return [row[0] for row in rows(url, f"SELECT m.event_id FROM {joined} ORDER BY p.seq")]


def seen_ids(url: str, name: str = "inbox") -> list[str]:
    found: Sequence[Any] = [row[0] for row in rows(url, f"SELECT event_id FROM {name}_seen ORDER BY event_id")]
    return [value.decode() if isinstance(value, bytes) else value for value in found]


def holds(url: str, ids: Sequence[str], name: str = "inbox") -> bool:
    """All three tables agree that exactly these are there, in this order."""
    same = message_ids(url, name) == pending_ids(url, name) == list(ids)
    return same and sorted(seen_ids(url, name)) == sorted(ids)
