"""Django: `django.db.connection`, `connections["alias"]`, a cursor of one; and connections of our own beside them.

A statement runs through Django's cursor, so execute wrappers and `connection.queries` see it like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, ClassVar, Literal
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, async_to_sync, sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import (
    DEFAULT_DB_ALIAS,
    Error,
    InterfaceError,
    OperationalError,
    connections,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.transaction import TransactionManagementError
from django.utils.connection import ConnectionProxy

from ..around import frameworks
from ..errors import ConfigError, StoreError, UnsupportedByEngine
from ..op import Copy, Op, Result, Statement, T
from ..words import did_you_mean
from .pool import AsyncDatabase, Database
from .spi import Callback, Connection, DialectName
from .toolkits import BEGIN, abort, translate_cause
from .urls import DJANGO

THREADS = 1_000_000  # each brings its connection along, so there is nothing to wait for
_DIALECTS: dict[str, DialectName] = {"postgresql": "postgres", "sqlite": "sqlite", "mysql": "mysql"}


@contextmanager
def translated() -> Iterator[None]:
    """Django wraps the client library's error and keeps it as the cause."""
    try:
        yield
    except TransactionManagementError as error:
        raise StoreError("the transaction has failed already; leave the atomic block before writing events") from error
    except Error as error:
        cause = error.__cause__ or error
        raise translate_cause(cause, lost=isinstance(error, (OperationalError, InterfaceError))) from cause


def _wrapper(target: Any) -> Any:
    """The DatabaseWrapper behind what people hold; None for anything else."""
    if isinstance(target, ConnectionProxy):
        target = connections[target.alias]
    if isinstance(target, CursorWrapper):
        target = target.db
    return target if isinstance(target, BaseDatabaseWrapper) else None


def _dialect(wrapper: Any) -> DialectName:
    if wrapper.vendor not in _DIALECTS:
        raise ConfigError(f"relaybox has no store for Django's {wrapper.vendor!r}; it knows {', '.join(_DIALECTS)}")
    return _DIALECTS[wrapper.vendor]


class DjangoHandle:
    """The caller's connection. COPY stays off: Django's cursors do not show it."""

    is_async: ClassVar[Literal[False]] = False
    copy: bool = False

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.dialect: DialectName = _dialect(raw)
        self.silent: bool = not raw.in_atomic_block

    def execute(self, statement: Statement | Copy) -> Result:
        if isinstance(statement, Copy):
            raise UnsupportedByEngine("Django has no COPY; psycopg and asyncpg have")
        text, params = statement.positional("format")  # Django's placeholders, whatever the engine
        with translated(), self.raw.cursor() as cursor:
            cursor.execute(text, params)
            if statement.query.answer == "count":
                return Result((), cursor.rowcount)
            rows = [tuple(map(self._value, row)) for row in cursor.fetchall()]
            return Result(rows, len(rows))

    def _value(self, value: Any) -> Any:
        """psycopg2 answers bytes as memoryviews, and without USE_TZ Django answers PostgreSQL's times naive."""
        if isinstance(value, memoryview):
            return bytes(value)
        if self.dialect == "postgres" and isinstance(value, datetime) and value.tzinfo is None:
            return value.replace(tzinfo=ZoneInfo(self.raw.timezone_name))
        return value

    def in_transaction(self) -> bool:
        with translated():
            return bool(self.raw.in_atomic_block or not self.raw.get_autocommit())

    def after_commit(self, callback: Callback) -> bool:
        if not self.raw.in_atomic_block:
            return False  # autocommit switched off by hand: Django refuses on_commit()
        self.raw.on_commit(callback)
        return True

    def after_rollback(self, callback: Callback) -> bool:
        return False

    def begin(self) -> None:
        raise StoreError("Django owns this transaction: use its atomic()")

    commit = rollback = close = begin

    def abort(self) -> None:
        if self.raw.connection is not None:
            abort(self.raw.connection)

    def broken(self) -> bool:
        return False


def wrap(handle: Any) -> DjangoHandle | None:
    wrapper = _wrapper(handle)
    return None if wrapper is None else DjangoHandle(wrapper)


# -- Django's connection of the calling thread, for ops of ours ---------------------------------------------


class ThreadsConnection(DjangoHandle):
    """Begins and commits as `atomic()` does: inside the block of a TestCase by savepoints."""

    def __init__(self, raw: Any) -> None:
        super().__init__(raw)
        self.silent = True
        self.opened = raw.connection is None  # for us: we end it as the end of a request would
        self._atomic: Any = None

    def in_transaction(self) -> bool:
        return self._atomic is not None

    def after_commit(self, callback: Callback) -> bool:
        return False

    def begin(self) -> None:
        atomic, outermost = transaction.atomic(using=self.raw.alias), not self.raw.in_atomic_block
        with translated():
            atomic.__enter__()
            self._atomic = atomic
            if outermost and self.dialect == "sqlite":
                self._lock()

    def _lock(self) -> None:
        """Django begins without a lock, and who reads first cannot always have one later."""
        try:
            with self.raw.cursor() as cursor:
                for word in ("ROLLBACK", *BEGIN["sqlite"]):
                    cursor.execute(word)
        except Error:
            self.rollback()
            raise

    def commit(self) -> None:
        self._leave(None)

    def rollback(self) -> None:
        self._leave(StoreError("rolled back"))

    def _leave(self, error: StoreError | None) -> None:
        atomic, self._atomic = self._atomic, None
        with translated():
            atomic.__exit__(error and type(error), error, None)

    def close(self) -> None:
        with translated():
            self.raw.close()

    def broken(self) -> bool:
        return False  # Django looks after it


class OwnConnection(DjangoHandle):
    """Beside one that is in a transaction of the caller's, for what must not wait for that."""

    def __init__(self, raw: Any) -> None:
        super().__init__(raw)
        self.silent = True
        self._begun = False

    def in_transaction(self) -> bool:
        return self._begun

    def after_commit(self, callback: Callback) -> bool:
        return False

    def begin(self) -> None:
        self._begun = True
        self._speak(*BEGIN[self.dialect])

    def commit(self) -> None:
        self._speak("COMMIT")
        self._begun = False

    def rollback(self) -> None:
        self._speak("ROLLBACK")
        self._begun = False

    def _speak(self, *words: str) -> None:
        with translated(), self.raw.cursor() as cursor:
            for word in words:
                cursor.execute(word)

    def close(self) -> None:
        with translated():
            self.raw.close()


class DjangoDatabase(Database):
    """Looks the connection up at each use, so in a test it acts on the test's database and in the test's transaction.

    A thread in a transaction of its own (`atomic()`, or autocommit switched off) gets a connection for each op: what we
    do commits by itself.
    """

    here = True

    def __init__(self, alias: str, timeout: float | None) -> None:
        self._alias = alias
        wrapper = connections[alias]
        super().__init__(_dialect(wrapper), self._open, size=THREADS, timeout=timeout, address=("django", alias))

    def run_within(self, seconds: float | None, op: Op[T], *, tx: bool = True) -> T:
        """In a test what fails must not take the test's transaction along."""
        return super().run_within(seconds, op, tx=tx or connections[self._alias].in_atomic_block)

    def take(self) -> Connection:
        raw = connections[self._alias]
        if raw.in_atomic_block:
            return ThreadsConnection(raw) if _of_a_test(raw) else self._open()
        if raw.connection is not None and not raw.autocommit:
            return self._open()
        if raw.errors_occurred:
            raw.close_if_unusable_or_obsolete()
        return ThreadsConnection(raw)

    def _open(self) -> Connection:
        with translated():
            raw = connections.create_connection(self._alias)
            raw.inc_thread_sharing()  # who waits too long for it closes it, from another thread
            raw.connect()
        return OwnConnection(raw)

    def give_back(self, connection: Connection, *, suspect: bool) -> None:
        if isinstance(connection, OwnConnection):
            with suppress(StoreError):
                connection.close()
        elif isinstance(connection, ThreadsConnection) and (suspect or connection.opened):
            with suppress(StoreError), translated():
                if connection.raw.in_atomic_block:
                    return
                connection.raw.close_if_unusable_or_obsolete()


def _of_a_test(raw: Any) -> bool:
    """The outermost block is that of a TestCase, which never commits: there is nothing beside it."""
    return bool(getattr(next(iter(raw.atomic_blocks), None), "_from_testcase", False))


def alias_of(url: str) -> str:
    """`django://billing` is the database of that name in Django's settings; `django://` is `default`."""
    alias = url.partition("://")[2].rstrip("/") or DEFAULT_DB_ALIAS
    try:
        known = list(connections.settings)
    except ImproperlyConfigured as error:
        raise ConfigError(f"{url} is a database of Django's settings, and there are none: {error}") from error
    if alias not in known:
        hint = did_you_mean(alias, known, f"; there are {', '.join(known)}")
        raise ConfigError(f"Django's settings have no database {alias!r}{hint}")
    return alias


def of_alias(url: str, timeout: float | None) -> DjangoDatabase:
    return DjangoDatabase(alias_of(url), timeout)


def borrow(target: Any, size: int, timeout: float | None = None, pause: float | None = None) -> Database | None:
    wrapper = _wrapper(target)
    return None if wrapper is None else DjangoDatabase(wrapper.alias, timeout)


def aborrow(target: Any, size: int, timeout: float | None = None, pause: float | None = None) -> AsyncDatabase | None:
    """Connections of our own, each to where the settings point when it is made."""
    wrapper = _wrapper(target)
    if wrapper is None:
        return None
    from . import open_async

    return open_async(f"django://{wrapper.alias}", size=size, timeout=timeout, pause=pause)


def url_of(alias: str = "default") -> str:
    """The address of a Django database, password included, for a client library of our choice."""
    return _url(connections[alias])


_KEPT = ("options", "sslmode", "sslrootcert", "sslcert", "sslkey", "target_session_attrs", "service", "passfile")


_SSL_MODES = {"DISABLED": "off", "REQUIRED": "require", "VERIFY_CA": "verify", "VERIFY_IDENTITY": "verify"}


def _mysql_tls(options: Mapping[str, Any]) -> dict[str, str]:
    """What mysqlclient is told. Who names an authority wants to verify, which we do whole: the host, too."""
    given = options.get("ssl")
    ssl = given if isinstance(given, dict) else {}
    found = {f"{name}_file": str(ssl[name]) for name in ("ca", "cert", "key") if ssl.get(name)}
    if mode := _SSL_MODES.get(str(options.get("ssl_mode", "")).upper()):
        found["tls"] = "verify" if "ca_file" in found else mode
    elif ssl or given is True:
        found["tls"] = "verify"
    return found


def _url(wrapper: Any) -> str:
    settings = wrapper.settings_dict
    dialect = _dialect(wrapper)
    name = str(settings["NAME"] or "")
    if dialect == "sqlite":
        if name == ":memory:":
            raise ConfigError("an in-memory SQLite database lives in one connection; use a file")
        return f"sqlite:///{name}"
    options = {key: str(value) for key, value in settings["OPTIONS"].items() if key in _KEPT}
    if dialect == "mysql":
        options |= _mysql_tls(settings["OPTIONS"])
    if role := settings["OPTIONS"].get("assume_role"):
        escaped = role.replace("\\", "\\\\").replace(" ", "\\ ")
        options["options"] = f"{options.get('options', '')} -c role={escaped}".strip()
    account = quote(settings["USER"] or "", safe="")
    if settings["PASSWORD"]:
        account += f":{quote(settings['PASSWORD'], safe='')}"
    host, port = settings["HOST"] or "", str(settings["PORT"] or "")
    if host.startswith("/"):
        options["host" if dialect == "postgres" else "unix_socket"] = host
        host = ""
    place = host or ("localhost" if dialect == "mysql" else "")
    if ":" in place:
        place = f"[{place}]"
    if port and place:
        place += f":{port}"
    elif port and dialect == "postgres":
        options["port"] = port
    scheme = "postgresql" if dialect == "postgres" else "mysql"
    query = f"?{urlencode(options)}" if options else ""
    return f"{scheme}://{account}{'@' if account else ''}{place}/{quote(name, safe='')}{query}"


# -- around listeners --------------------------------------------------------------------------------------


class AroundListeners:
    """What Django does around requests. A connection that broke is not used again, and none is open for longer than
    CONN_MAX_AGE says, or than the service works."""

    def __init__(self) -> None:
        self._open: set[BaseDatabaseWrapper] = set()  # in threads of listeners that rest

    def plain(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def around(*args: Any) -> Any:
            self._open.difference_update(_close_old())
            try:
                return call(*args)
            finally:
                self._open.update(each for each in _close_old() if each.connection is not None)

        return around

    def awaited(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """As a request of ASGI: a thread of its own for what it asks the ORM, if it asks."""

        async def around(*args: Any) -> Any:
            async with ThreadSensitiveContext() as context:
                try:
                    return await call(*args)
                finally:
                    if context in SyncToAsync.context_to_thread_executor:
                        await sync_to_async(connections.close_all)()

        return around

    def concerns(self, target: Any) -> bool:
        return target.startswith(DJANGO) if isinstance(target, str) else _wrapper(target) is not None

    def here(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return async_to_sync(call)

    def apart(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return sync_to_async(call)

    def close(self) -> None:
        """In a thread: Django refuses to work in that of an event loop."""
        if self._open:
            with ThreadPoolExecutor(1) as aside:
                aside.submit(self._close).result()

    def _close(self) -> None:
        while self._open:
            resting = self._open.pop()
            resting.inc_thread_sharing()
            resting.close()


def _close_old() -> list[Any]:
    """As `close_old_connections`, which ends transactions, too. Those of this thread."""
    if not settings.configured:  # Django is imported, by somebody, and not used
        return []
    mine: list[Any] = connections.all(initialized_only=True)
    for each in mine:
        if not each.in_atomic_block:
            each.close_if_unusable_or_obsolete()
    return mine


frameworks.append(AroundListeners)
