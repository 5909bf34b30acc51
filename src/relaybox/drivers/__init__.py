"""From what a user has to a driver: `wrap` a handle, `open_sync`/`open_async` a URL or an engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, cast

from ..errors import ConfigError, MissingExtra
from .pool import AsyncDatabase, Database
from .spi import AsyncConnection, Connection, DialectName
from .urls import DJANGO, Url, parse, resolved

__all__ = ["AsyncDatabase", "Database", "check_shared", "open_async", "open_sync", "parse", "wrap"]

# The client library's top-level package -> our module for it. Others register under the entry point
# group "relaybox.drivers": a module with a function wrap(handle).
_MODULES = {
    name: f"{__name__}.{name}"
    for name in ("psycopg", "asyncpg", "sqlite3", "aiosqlite", "pymysql", "asyncmy", "sqlalchemy", "django")
}
_wrappers: dict[type, Callable[[Any], Connection | AsyncConnection | None]] = {}


def wrap(handle: Any) -> Connection | AsyncConnection:
    """The adapter of a caller's connection, session or cursor."""
    kind = type(handle)
    wrapper = _wrappers.get(kind)
    if wrapper is None:
        wrapper = _wrappers[kind] = _find(kind)
    adapter = wrapper(handle)
    if adapter is None:
        raise ConfigError(_not_a_handle(kind))
    return adapter


def _find(kind: type) -> Callable[[Any], Connection | AsyncConnection | None]:
    plugins = {point.name: point.value for point in entry_points(group="relaybox.drivers")}
    for base in kind.__mro__:
        package = base.__module__.partition(".")[0]
        if base.__module__.startswith("relaybox.") and hasattr(base, "in_transaction"):
            return _itself  # and not a connection of ours, which is of a client's class too
        module = _MODULES.get(package) or plugins.get(package)
        if module:
            found: Callable[[Any], Connection | AsyncConnection | None] = import_module(module).wrap
            return found
    raise ConfigError(_not_a_handle(kind))


def _itself(handle: Any) -> Connection | AsyncConnection | None:
    """Our own transaction objects are adapters already."""
    adapter: Connection | AsyncConnection = handle
    return adapter


def _not_a_handle(kind: type) -> str:
    return (
        f"cannot write through a {kind.__module__}.{kind.__qualname__}; pass a connection or session of "
        f"{', '.join(_MODULES)}, or what transaction() gives"
    )


def _module(name: str, extra: str) -> Any:
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("relaybox"):
            raise
        raise MissingExtra(error.name or name, extra) from error


_SYNC: dict[DialectName, tuple[str, ...]] = {"postgres": ("psycopg",), "sqlite": ("sqlite3",), "mysql": ("pymysql",)}
_ASYNC: dict[DialectName, tuple[str, ...]] = {
    "postgres": ("asyncpg", "psycopg"),
    "sqlite": ("sqlite3",),
    "mysql": ("asyncmy",),
}


def _choose(url: Url, candidates: tuple[str, ...]) -> Any:
    """The driver named in the URL (`postgresql+psycopg://`) if it fits, else the first that is installed."""
    if url.driver in candidates:
        return _module(url.driver, url.driver)
    missing: MissingExtra | None = None
    for name in candidates:
        try:
            return _module(name, name)
        except MissingExtra as error:
            missing = missing or error
    assert missing is not None
    raise missing


def open_sync(target: Any, *, size: int = 4, timeout: float | None = None, pause: float | None = None) -> Database:
    """A URL, or an object that gives connections: a SQLAlchemy engine, a Django connection. What Django calls a name is
    looked up whenever it is used: its tests have other databases.

    `timeout`: for services of ours. Seconds after which a database counts as away, and connections that are not shared
    with all else that uses the target. `pause`: seconds that a session may be idle in a transaction, if not `timeout`.
    """
    if not isinstance(target, str):
        return cast(Database, _borrowed(target, "borrow", size, timeout, pause))
    if target.startswith(DJANGO):
        return cast(Database, _module("django", "django").of_alias(target, timeout))
    url = parse(target)
    module = _choose(url, _SYNC[url.dialect])
    connect = partial(module.connect, url.bare, timeout=timeout, **_pause(url, pause))
    return Database(url.dialect, connect, size=url.pool_size(size), timeout=timeout, address=url.bare)


def check_shared(target: Any) -> None:
    """For services, which have connections of their own."""
    if type(target).__module__.startswith("django."):
        target = f"{DJANGO}//{target.alias}"
    if not isinstance(target, str):
        return
    url = parse(target)
    if target.startswith(DJANGO) and "mode=memory" in url.bare:
        raise ConfigError(
            "this test database is in memory, where a reader beside a writer fails; give it a file, "
            '"TEST": {"NAME": BASE_DIR / "test.sqlite3"} in DATABASES, or deliver by deliver_pending()'
        )
    if url.in_memory:
        raise ConfigError(
            "an in-memory SQLite database belongs to one connection, so nobody else could write to it; "
            "use a file such as sqlite:///outbox.db"
        )


def _pause(url: Url, pause: float | None) -> dict[str, float]:
    """SQLite has no sessions."""
    return {} if pause is None or url.dialect == "sqlite" else {"pause": pause}


def open_async(
    target: Any, *, size: int = 4, timeout: float | None = None, pause: float | None = None
) -> AsyncDatabase:
    if not isinstance(target, str):
        return cast(AsyncDatabase, _borrowed(target, "aborrow", size, timeout, pause))
    url = parse(target)
    module = _choose(url, _ASYNC[url.dialect])
    connect = partial(module.aconnect, timeout=timeout, **_pause(url, pause))
    listening: Any = getattr(module, "listen", None)
    place: Callable[[], str] = partial(resolved, target)

    def listen(*heard: Any) -> Any:
        return listening(parse(target).bare, *heard, timeout=timeout)

    return AsyncDatabase(
        url.dialect,
        lambda: connect(parse(target).bare),
        size=url.pool_size(size),
        listen=listen if listening else None,
        timeout=timeout,
        address=url.bare,
        place=place if target.startswith(DJANGO) else None,
    )


def _borrowed(target: Any, verb: str, *options: Any) -> Any:
    for base in type(target).__mro__:
        package = base.__module__.partition(".")[0]
        if package in _MODULES:
            borrow = getattr(import_module(_MODULES[package]), verb, None)
            database = borrow(target, *options) if borrow else None
            if database is not None:
                return database
    raise ConfigError(
        f"cannot open connections from a {type(target).__module__}.{type(target).__qualname__}; pass a URL "
        "such as postgresql://host/db, sqlite:///file.db or mysql://host/db, or a SQLAlchemy engine"
    )
