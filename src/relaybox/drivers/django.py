"""Django: `django.db.connection`, `connections["alias"]`, a cursor of one; and connections of our own beside them.

A statement runs through Django's cursor, so execute wrappers and `connection.queries` see it like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Literal
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo

from django.db import Error, InterfaceError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.transaction import TransactionManagementError
from django.utils.connection import ConnectionProxy

from ..errors import ConfigError, StoreError, UnsupportedByEngine
from ..op import Copy, Result, Statement
from .pool import AsyncDatabase, Database
from .spi import Callback, DialectName
from .toolkits import BEGIN, abort, translate_cause

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


# -- connections of our own ------------------------------------------------------------------------------


class OwnDjangoConnection(DjangoHandle):
    """Made from the same settings and unknown to Django's request cycle, which would close it."""

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

    def broken(self) -> bool:
        """Asks the server only after an error: a question per use would cost a round trip each."""
        if self.raw.connection is None:
            return True
        if self.raw.errors_occurred:
            self.raw.errors_occurred = not self.raw.is_usable()
        return bool(self.raw.errors_occurred)


def _connect(alias: str) -> OwnDjangoConnection:
    with translated():
        raw = connections.create_connection(alias)
        raw.inc_thread_sharing()  # our pool hands it from thread to thread, one at a time
        raw.connect()
    return OwnDjangoConnection(raw)


def borrow(target: Any, size: int, timeout: float | None = None, pause: float | None = None) -> Database | None:
    """With psycopg 3 our own driver connects by Django's settings: its rows are binary and it has COPY."""
    wrapper = _wrapper(target)
    if wrapper is None:
        return None
    if _has_psycopg3(wrapper):
        from .psycopg import connect

        opened = partial(connect, _conninfo(wrapper), timeout=timeout, pause=pause)
        return Database("postgres", opened, size=size, timeout=timeout)
    return Database(_dialect(wrapper), partial(_connect, wrapper.alias), size=size, timeout=timeout)


def aborrow(target: Any, size: int, timeout: float | None = None, pause: float | None = None) -> AsyncDatabase | None:
    wrapper = _wrapper(target)
    if wrapper is None:
        return None
    from . import open_async

    return open_async(_url(wrapper), size=size, timeout=timeout, pause=pause)


def _has_psycopg3(wrapper: Any) -> bool:
    return bool(wrapper.vendor == "postgresql" and wrapper.Database.__name__ == "psycopg")


def _conninfo(wrapper: Any) -> str:
    from psycopg import pq
    from psycopg.conninfo import make_conninfo

    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    params = {name: value for name, value in wrapper.get_connection_params().items() if name in known}
    role = wrapper.settings_dict["OPTIONS"].get("assume_role")
    if role:
        escaped = role.replace("\\", "\\\\").replace(" ", "\\ ")
        params["options"] = f"{params.get('options', '')} -c role={escaped}".strip()
    return make_conninfo(**params)


def url_of(alias: str = "default") -> str:
    """The address of a Django database, password included, for a client library of our choice."""
    return _url(connections[alias])


_KEPT = ("sslmode", "sslrootcert", "sslcert", "sslkey", "target_session_attrs", "service", "passfile")


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
