"""A receiving service's own table, and handlers that write to it in the transaction they are given."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from kit import rows
from relaybox import Event, Retry, Settings
from relaybox.types import DeliverySettings

QUICK = Settings(
    delivery=DeliverySettings(retry=Retry(base="5ms", max="20ms"), instance_ttl="1s", lease="3s", poll="20ms")
)


COUNTED = {
    "postgresql": "bigint GENERATED ALWAYS AS IDENTITY",
    "mysql": "bigint AUTO_INCREMENT PRIMARY KEY",
    "sqlite": "integer PRIMARY KEY AUTOINCREMENT",
}


def with_effects(url: str) -> str:
    """No key forbids that an event is there twice. The effects of a key are numbered as they commit."""
    number = COUNTED[url.partition(":")[0]]
    rows_or_none(url, f"CREATE TABLE effect (event_id varchar(255) NOT NULL, note varchar(255), id {number})")
    return url


def rows_or_none(url: str, text: str) -> None:
    if url.startswith("sqlite"):
        import sqlite3

        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            connection.execute(text)
        connection.close()
        return
    rows(url, text)


def effects(url: str) -> list[str]:
    """Sorted: the order in which transactions have committed is in no table."""
    return [row[0] for row in rows(url, "SELECT event_id FROM effect ORDER BY event_id")]


def text_of(event: Event, note: object = "") -> str:
    return f"INSERT INTO effect (event_id, note) VALUES ('{event.id}', '{note}')"


def say(handle: Any, text: str) -> None:
    """One statement through a synchronous handle of any library."""
    module = type(handle).__module__.partition(".")[0]
    if module == "sqlalchemy":
        import sqlalchemy as sa

        handle.execute(sa.text(text))
        return
    cursor = handle.cursor()
    cursor.execute(text)
    cursor.close()


async def asay(handle: Any, text: str) -> None:
    modules = {kind.__module__.partition(".")[0] for kind in type(handle).__mro__}  # it may be of a subclass of ours
    if "sqlalchemy" in modules:
        import sqlalchemy as sa

        await handle.execute(sa.text(text))
    elif "asyncmy" in modules:
        async with handle.cursor() as cursor:
            await cursor.execute(text)
    elif "sqlite3" in modules:
        # After a rollback of its own it may wait for the lock that another transaction of this event loop has.
        await asyncio.to_thread(handle.execute, text)
    else:
        answer = handle.execute(text)
        if inspect.isawaitable(answer):
            await answer


def writing(is_async: bool, before: Callable[[Event], Any] | None = None) -> Callable[[Event, Any], Any]:
    """A handler that writes its effect first, then does what `before` the commit is asked for."""
    if not is_async:

        def handle(event: Event, handle: Any) -> None:
            say(handle, text_of(event, event.payload["n"]))
            if before is not None:
                before(event)

        return handle

    async def ahandle(event: Event, handle: Any) -> None:
        await asay(handle, text_of(event, event.payload["n"]))
        if before is not None:
            answer = before(event)
            if isinstance(answer, Awaitable):
                await answer

    return ahandle
