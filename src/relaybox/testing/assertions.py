"""What has been published: assertions over the events in the store.

    outbox_under_test.place_order(7)
    assert_published(outbox, "OrderPlaced", key="order-7", payload={"id": 7}, count=1)

Given an Outbox or AsyncOutbox, only committed events are seen. Given a connection or session (with `table=` if it is
not the default), what that connection sees, its own open transaction included. Failure messages list types and
keys; payloads only with `show_payloads=True`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypedDict, Unpack, overload

from ..drivers import wrap
from ..drivers.spi import AsyncConnection, AsyncHandle, Connection, Handle
from ..event import Event, name_of
from ..op import Op, Query, arun, run
from ..outbox import AsyncOutbox, Outbox
from ..store.event_rows import EVENT_COLUMNS
from ..store.names import Tables
from ..store.outbox import OutboxStore, open_store
from ..store.queries import fill

PAGE = 1_000
SHOWN = 20

# Every dialect has these columns; `{event}` becomes the quoted table name.
_READ = "SELECT {columns} FROM {event} WHERE seq > :after ORDER BY seq LIMIT :limit"

Payload = Mapping[str, Any] | Callable[[Any], bool] | Any


class Filters(TypedDict, total=False):
    """Which events are meant. `payload`: a dict has these keys with these values, a function returns True, anything
    else is equal. `headers`: these, among others. `table` and `schema` go with a connection; an Outbox has its own."""

    key: str
    payload: Payload
    headers: Mapping[str, str]
    tenant: str
    table: str
    schema: str | None


@overload  # SQLite's own handles are for both kinds of outbox, and answer at once
def published(  # type: ignore[overload-overlap]
    source: Outbox | Handle, event_type: str | Enum | None = None, /, **filters: Unpack[Filters]
) -> list[Event]: ...
@overload
def published(
    source: AsyncOutbox | AsyncHandle, event_type: str | Enum | None = None, /, **filters: Unpack[Filters]
) -> Coroutine[Any, Any, list[Event]]: ...
def published(source: Any, event_type: str | Enum | None = None, /, **filters: Unpack[Filters]) -> Any:
    """The stored events that match, oldest first. To be awaited for an AsyncOutbox or an async handle."""
    wanted = _Wanted.of(event_type, filters)
    return _read(source, filters, lambda events: [event for event in events if wanted.matches(event)])


@overload
def assert_published(  # type: ignore[overload-overlap]
    source: Outbox | Handle,
    event_type: str | Enum,
    /,
    *,
    count: int | None = None,
    show_payloads: bool = False,
    **filters: Unpack[Filters],
) -> list[Event]: ...
@overload
def assert_published(
    source: AsyncOutbox | AsyncHandle,
    event_type: str | Enum,
    /,
    *,
    count: int | None = None,
    show_payloads: bool = False,
    **filters: Unpack[Filters],
) -> Coroutine[Any, Any, list[Event]]: ...
def assert_published(
    source: Any,
    event_type: str | Enum,
    /,
    *,
    count: int | None = None,
    show_payloads: bool = False,
    **filters: Unpack[Filters],
) -> Any:
    """At least one such event is stored, or exactly `count`. Returns those that match. To be awaited for an AsyncOutbox
    or an async handle."""
    __tracebackhide__ = True
    wanted = _Wanted.of(event_type, filters)
    return _read(source, filters, lambda events: _checked(events, wanted, count, show_payloads))


class _Wanted(NamedTuple):
    type: str | None
    filters: Filters

    @classmethod
    def of(cls, event_type: str | Enum | None, filters: Filters) -> _Wanted:
        unknown = set(filters) - set(Filters.__annotations__)
        if unknown:
            raise TypeError(f"unknown filter {sorted(unknown)[0]!r}; there are {', '.join(Filters.__annotations__)}")
        return cls(None if event_type is None else name_of(event_type, "event type"), filters)

    def matches(self, event: Event) -> bool:
        return self.near(event) and self._payload(event) and self._headers(event)

    def near(self, event: Event) -> bool:
        """Type, key and tenant fit: what a failure message calls a near miss if the rest does not."""
        return (
            self.type in (None, event.type)
            and self.filters.get("key", event.key) == event.key
            and self.filters.get("tenant", event.tenant) == event.tenant
        )

    def _payload(self, event: Event) -> bool:
        if "payload" not in self.filters:
            return True
        wanted = self.filters["payload"]
        return bool(wanted(event.payload)) if callable(wanted) else _contains(event.payload, wanted)

    def _headers(self, event: Event) -> bool:
        return self.filters.get("headers", {}).items() <= dict(event.headers).items()

    def __str__(self) -> str:
        """No values of payloads or headers."""
        parts = [f"{name} {self.filters[name]!r}" for name in ("key", "tenant") if name in self.filters]
        parts += [f"the given {name}" for name in ("payload", "headers") if name in self.filters]
        return f"{self.type or 'any'} event" + (f" with {', '.join(parts)}" if parts else "")


def _contains(actual: Any, wanted: Any) -> bool:
    """Dicts by subset, at every depth; everything else by equality."""
    if isinstance(wanted, Mapping) and isinstance(actual, Mapping):
        return all(name in actual and _contains(actual[name], value) for name, value in wanted.items())
    return bool(actual == wanted)


def _checked(events: list[Event], wanted: _Wanted, count: int | None, show_payloads: bool) -> list[Event]:
    __tracebackhide__ = True
    found = [event for event in events if wanted.matches(event)]
    if found if count is None else len(found) == count:
        return found
    raise AssertionError(_failure(events, found, wanted, count, show_payloads))


def _failure(events: list[Event], found: list[Event], wanted: _Wanted, count: int | None, show_payloads: bool) -> str:
    expected = "at least one" if count is None else str(count)
    lines = [f"expected {expected} {wanted}, found {len(found)} among {len(events)} stored events"]
    near = [event for event in events if wanted.near(event) and not wanted.matches(event)]
    if near:
        hint = "" if show_payloads else "; show_payloads=True shows them"
        lines.append(f"{len(near)} of that type and key have another payload or other headers{hint}")
    for event in events[-SHOWN:]:
        mark = "*" if event in found else "~" if event in near else " "
        shown = f" {_shown(event)}" if show_payloads else ""
        lines.append(f"  {mark} {event.type} key={event.key!r}{shown}")
    if len(events) > SHOWN:
        lines.insert(len(lines) - SHOWN, f"  … {len(events) - SHOWN} older ones")
    return "\n".join(lines)


def _shown(event: Event) -> str:
    return f"payload={event.body.decode(errors='replace')[:500]} headers={dict(event.headers)!r}"


# -- reading -----------------------------------------------------------------------------------------


def _events(store: OutboxStore) -> Op[list[Event]]:
    names = {**store.tables.substitutions(store.quote), "columns": ", ".join(EVENT_COLUMNS)}
    query = Query("testing.published", fill(_READ, names), "rows")
    events: list[Event] = []
    after = 0
    while True:
        result = yield query.bind(after=after, limit=PAGE)
        events += [Event.stored(store.event_row(row)) for row in result.rows]
        if len(result.rows) < PAGE:
            return events
        after = result.rows[-1][0]


def _read(source: Any, filters: Filters, look: Callable[[list[Event]], list[Event]]) -> Any:
    """What `look` makes of the stored events; of an async source, something to be awaited for it."""
    __tracebackhide__ = True
    if isinstance(source, AsyncOutbox):
        return _awaited(source._db.run(_events(source.store), tx=False), look)
    if isinstance(source, Outbox):
        return look(source._db.run(_events(source.store), tx=False))
    connection = wrap(source)
    op = _events(_store_of(connection, filters))
    return _awaited(arun(op, connection), look) if connection.is_async else look(run(op, connection))


async def _awaited(events: Awaitable[list[Event]], look: Callable[[list[Event]], list[Event]]) -> list[Event]:
    __tracebackhide__ = True
    return look(await events)


def _store_of(connection: Connection | AsyncConnection, filters: Filters) -> OutboxStore:
    return open_store(connection.dialect, Tables(filters.get("table", "outbox_event"), filters.get("schema")))
