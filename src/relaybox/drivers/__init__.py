"""From what a user has to a driver: `wrap` a handle, `open_sync`/`open_async` a URL or an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from inspect import iscoroutine
from typing import Any, cast

from ..errors import ConfigError, MissingExtra
from .pool import AsyncDatabase, Database
from .spi import AsyncConnection, Connection, DialectName
from .urls import DJANGO, Url, parse, resolved

__all__ = ["AsyncDatabase", "Database", "check_shared", "open_async", "open_sync", "parse", "resolved", "wrap"]

# The client library's top-level package -> our module for it. Others register under the entry point
# group "relaybox.drivers": a module with a function wrap(handle).
_MODULES = {
    name: f"{__name__}.{name}"
    for name in ("psycopg", "psycopg2", "asyncpg", "sqlite3", "aiosqlite", "pymysql", "asyncmy", "sqlalchemy", "django")
} | {"MySQLdb": f"{__name__}.mysqldb", "mysql": f"{__name__}.mysql_connector"}
_NAMES = [{"MySQLdb": "mysqlclient", "mysql": "MySQL Connector/Python"}.get(name, name) for name in _MODULES]
# Of what gives connections: the package -> our module, with `borrow` and `aborrow` for connections of ours that are
# made as its are, and, of a pool, `lend` and `alend` for its own.
_TARGETS = {
    name: f"{__name__}.{module}"
    for name, module in (
        ("sqlalchemy", "sqlalchemy"),
        ("django", "django"),
        ("psycopg_pool", "psycopg_pool"),
        ("asyncpg", "asyncpg_pool"),
    )
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
    gives = any(hasattr(kind, name) for name in ("acquire", "getconn", "get_connection"))
    hint = "take a connection from this pool, or " if gives else ""
    return (
        f"cannot write through a {kind.__module__}.{kind.__qualname__}; {hint}pass a connection or session of "
        f"{', '.join(_NAMES)}, or what transaction() gives"
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


def open_sync(
    target: Any, *, size: int = 4, timeout: float | None = None, pause: float | None = None, callers: bool = False
) -> Database:
    """A URL, an object that gives connections (a SQLAlchemy engine, a pool, a Django connection), or a function that
    returns one. What Django calls a name is looked up whenever it is used: its tests have other databases.

    `timeout`: for services of ours. Seconds after which a database counts as away, and connections that are not shared
    with all else that uses the target. `pause`: seconds that a session may be idle in a transaction, if not `timeout`.
    `callers`: for what callers do themselves. A pool lends its own connections for that, as many as it has.
    """
    target = _found(target)
    if not isinstance(target, str):
        verbs, options = ("lend", "borrow"), (size, timeout, pause)
        return cast(Database, _borrowed(target, verbs if callers else verbs[1:], options))
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
    target: Any, *, size: int = 4, timeout: float | None = None, pause: float | None = None, callers: bool = False
) -> AsyncDatabase:
    target = _found(target)
    if not isinstance(target, str):
        verbs, options = ("alend", "aborrow"), (size, timeout, pause)
        return cast(AsyncDatabase, _borrowed(target, verbs if callers else verbs[1:], options))
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


def _found(target: Any) -> Any:
    """What a function that is given as target returns now."""
    if not callable(target) or isinstance(target, type):
        return target
    found = target()
    if found is None or iscoroutine(found):
        kind = "None"
        if iscoroutine(found):
            found.close()  # it shall not complain that nobody awaits it
            kind = "a coroutine"
        name = getattr(target, "__qualname__", "function")
        raise ConfigError(f"{name}(), given as target, returned {kind}; it must return a URL, an engine or a pool")
    return found


def _borrowed(target: Any, verbs: Sequence[str], options: Sequence[Any]) -> Any:
    for base in type(target).__mro__:
        package = base.__module__.partition(".")[0]
        if package in _TARGETS:
            module = import_module(_TARGETS[package])
            verb = next(name for name in verbs if hasattr(module, name))
            database = getattr(module, verb)(target, *(options if verb.endswith("borrow") else ()))
            if database is not None:
                return database
    raise ConfigError(
        f"cannot open connections from a {type(target).__module__}.{type(target).__qualname__}; pass a URL such as "
        "postgresql://host/db, sqlite:///file.db or mysql://host/db, a SQLAlchemy engine, a pool of psycopg_pool or "
        "asyncpg, or a function that returns one of these"
    )
