"""asyncpg."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, ClassVar, Literal
from weakref import WeakKeyDictionary, ref

import asyncpg

from ..errors import StoreError
from ..op import Copy, Result, Statement
from ..transport import Tls
from . import sockets
from .asyncpg_guard import Doorkeeper
from .postgres_errors import connection_lost, translate_sqlstate
from .postgres_sessions import BEGIN, KEEP_MEMORY, PULSE, session, transaction_limit
from .spi import Callback, DialectName, Translated
from .tls import clear_password, of_postgres

# Of types that asyncpg does not know by itself it asks the server, once per connection, in words that a stranger's
# operators could answer: it asks at the start, while the session looks nowhere but into the server's own schema.
_TYPES = """SELECT 1, NULL::smallint[], NULL::integer[], NULL::bigint[], NULL::float8[], NULL::text[], NULL::bytea[],
  NULL::boolean[], NULL::timestamptz[], NULL::xid8, NULL::xid8[], NULL::pg_snapshot, NULL::regclass, NULL::name[]"""
_OWN_TYPES = 10_000  # below: the numbers of types that are the same in every PostgreSQL
_JOINED = "; COMMIT"  # how `commit_after` ends
GOODBYE = 1.0  # seconds for the end of a connection that has nothing more to say


def translate(error: BaseException) -> StoreError | None:
    if isinstance(error, asyncpg.PostgresError):
        return translate_sqlstate(error.sqlstate or "", error.args[0] if error.args else "")
    # InternalClientError: the server has said that it ends the connection, and has not hung up yet.
    if isinstance(error, (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)):
        return connection_lost(f"{type(error).__name__}: {error}")
    return None


translated = Translated(translate)


class _CommitWatch:
    """Sees COMMIT and ROLLBACK on one connection through asyncpg's query logger, without touching it.

    Adding and removing a logger costs more than a transaction's worth of calls, so it stays until the connection
    has been used for a while without writing events.
    """

    IDLE_CALLS = 1000

    def __init__(self, raw: Any) -> None:
        self._raw = ref(raw)  # the connection is the key of this watch, and is freed with its pool
        self.committed: list[Callback] = []
        self.rolled_back: list[Callback] = []
        self._failed = False  # then the server answers COMMIT with ROLLBACK and no error
        self._idle = 0
        raw.add_query_logger(self)

    def __call__(self, record: Any) -> None:
        if not (self.committed or self.rolled_back):
            self._rest()
            return
        joined = record.query.endswith(_JOINED)
        verb, raw = "COMMIT" if joined else record.query[:8].upper(), self._raw()
        if (raw is not None and raw.is_in_transaction()) or not verb.startswith(("COMMIT", "END", "ROLLBACK")):
            self._failed = record.exception is not None or (self._failed and not verb.startswith("ROLLBACK"))
            return
        undone = self._failed or verb.startswith("ROLLBACK")
        self._failed, self._idle = False, 0
        committed, self.committed = self.committed, []
        rolled_back, self.rolled_back = self.rolled_back, []
        if record.exception is not None:
            return  # the outcome is not known: fire neither, the poller delivers what is there
        for callback in rolled_back if undone else committed:
            callback()

    def _rest(self) -> None:
        self._idle += 1
        raw = self._raw()
        if self._idle > self.IDLE_CALLS and raw is not None:
            raw.remove_query_logger(self)
            _watches.pop(raw, None)


_watches: WeakKeyDictionary[Any, _CommitWatch] = WeakKeyDictionary()


@lru_cache(64)
def _count(status: str) -> int:
    """The number in a status such as `INSERT 0 1`, of which there are few."""
    tail = status.rpartition(" ")[2]
    return int(tail) if tail.isdigit() else 0


class AsyncpgConnection:
    dialect: DialectName = "postgres"
    copy: bool = True
    is_async: ClassVar[Literal[True]] = True
    silent = False

    def __init__(self, raw: Any, *, pooled: bool = False) -> None:
        self.raw = raw
        # Behind a pooler, asyncpg's prepare and execute may reach two servers unless one transaction binds them.
        self._pooled = pooled

    async def execute(self, statement: Statement | Copy) -> Result:
        with translated:
            if self._pooled and not self.raw.is_in_transaction():
                return await self._execute_bound(statement)
            if isinstance(statement, Copy):
                await self.raw.copy_records_to_table(
                    statement.table,
                    schema_name=statement.schema,
                    columns=statement.columns,
                    records=statement.rows,
                )
                return Result((), len(statement.rows))
            text, params = statement.positional("dollar")
            if statement.query.answer == "rows":
                rows = await self.raw.fetch(text, *params)
                return Result(rows, len(rows))
            status = await self.raw.execute(text, *params)
        return Result((), _count(status))

    async def _execute_bound(self, statement: Statement | Copy) -> Result:
        await self.begin()
        try:
            result = await self.execute(statement)
        except Exception:
            await self.rollback()
            raise
        await self.commit()
        return result

    def in_transaction(self) -> bool:
        try:
            return bool(self.raw.is_in_transaction())
        except asyncpg.InterfaceError as error:  # so says a connection that went back to its pool
            raise connection_lost(f"{type(error).__name__}: {error}") from error

    def after_commit(self, callback: Callback) -> bool:
        self._watch().committed.append(callback)
        return True

    def after_rollback(self, callback: Callback) -> bool:
        self._watch().rolled_back.append(callback)
        return True

    def _watch(self) -> _CommitWatch:
        bare = getattr(self.raw, "_con", self.raw)
        watch = _watches.get(bare)
        if watch is None:
            watch = _watches[bare] = _CommitWatch(bare)
        return watch

    async def begin(self) -> None:
        with translated:
            await self.raw.execute(BEGIN if self._pooled else "BEGIN")

    async def commit(self) -> None:
        await self._commit("COMMIT")

    async def commit_after(self, statement: Statement) -> None:
        """A statement without parameters and COMMIT in one round trip: no COMMIT if it fails."""
        await self._commit(statement.query.text + _JOINED)

    async def _commit(self, text: str) -> None:
        with translated:
            said = await self.raw.execute(text)
        if said == "ROLLBACK":  # how the server answers COMMIT of a failed transaction
            raise translate_sqlstate("25P02", "")

    async def rollback(self) -> None:
        with translated:
            await self.raw.execute("ROLLBACK")

    async def close(self) -> None:
        with translated:
            await self.raw.close(timeout=5)

    def abort(self) -> None:
        with suppress(asyncpg.InterfaceError):  # it went back to its pool
            self.raw.terminate()

    def broken(self) -> bool:
        return bool(self.raw.is_closed())


def wrap(handle: Any) -> AsyncpgConnection | None:
    if isinstance(handle, (asyncpg.Connection, asyncpg.pool.PoolConnectionProxy)):
        return AsyncpgConnection(handle)
    return None


_direct: set[str] = set()  # URLs that led to a server and not to a pooler, the last time


async def aconnect(
    url: str, application: str = "relaybox", *, timeout: float | None = None, pause: float | None = None
) -> AsyncpgConnection:
    with translated:
        if url not in _direct:
            raw, pooled = await _connected(url, application, timeout)
            if pooled:
                return AsyncpgConnection(raw, pooled=True)
            await raw.close()
        _direct.discard(url)  # a pooler may refuse our settings: then the next attempt looks again
        raw, pooled = await _connected(url, application, timeout, session(timeout, pause))
        if pooled:
            raw.terminate()
            raise connection_lost("there is a pooler now where a server was; the next attempt knows")
        try:
            limit = transaction_limit(raw.get_server_version().major, timeout, pause)
            await raw.execute(f"SET search_path = pg_catalog; {KEEP_MEMORY}; {limit}")
            await raw.fetchval(_TYPES)
            await raw.execute("RESET search_path")
        except BaseException:
            raw.terminate()  # nobody else knows of it
            raise
    _direct.add(url)
    return AsyncpgConnection(raw)


_met: dict[frozenset[int], Any] = {}  # what asyncpg was told about types, by their numbers


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    """Asks for PostgreSQL's own types once per process: asking takes two thirds of the time to connect."""

    async def _introspect_types(self, types: Any, timeout: float | None) -> Any:
        asked = frozenset(types)
        if asked not in _met:
            found = await super()._introspect_types(types, timeout)
            if max(asked) >= _OWN_TYPES:
                return found
            _met[asked] = found
        return _met[asked]


async def _connected(
    url: str, application: str, timeout: float | None, settings: Mapping[str, str] | None = None
) -> tuple[Any, bool]:
    """A connection, and whether it leads to a pooler: one answers the start-up itself, so the pid it announced is not
    the one that runs our statements. In one transaction, which binds prepare and execute to one server. Without
    settings of the session, what a pooler could not bear is left out."""
    named = {"application_name": application, **(settings or {})}
    transport = of_postgres(url)
    transport.warn("PostgreSQL")
    url, options = sockets.split(transport.url, timeout)
    guard = Doorkeeper() if transport.guarded else None
    try:
        raw = await asyncpg.connect(
            url,
            server_settings=named,
            statement_cache_size=100 if settings else 0,
            timeout=options.get("connect_timeout") or None,
            loop=guard,
            connection_class=_Connection,
            **_tls(transport.tls),
        )
    except Exception:
        if guard is not None and guard.refused:
            raise clear_password("PostgreSQL") from None
        raise
    return await looked_at(raw, options)


async def looked_at(raw: Any, options: Mapping[str, int]) -> tuple[Any, bool]:
    """A new connection, and whether it leads to a pooler."""
    try:
        sockets.set_keepalive(raw._transport.get_extra_info("socket"), options)
        await raw.execute("BEGIN")
        server_pid = await raw.fetchval("SELECT pg_backend_pid()")
        await raw.execute("COMMIT")
    except BaseException:
        raw.terminate()
        raise
    return raw, server_pid != raw.get_server_pid()


async def ask_types(raw: Any) -> None:
    """Whatever the session's search_path is, and it stays so."""
    await raw.execute("BEGIN; SET LOCAL search_path = pg_catalog")
    await raw.fetchval(_TYPES)
    await raw.execute("COMMIT")


def _tls(tls: Tls) -> dict[str, Any]:
    if tls.mode is None:
        return {}
    return {"ssl": "disable" if tls.mode == "off" else tls.context()}


async def listen(
    url: str, channel: str, ready: Callable[[], None], wake: Callable[[], None], *, timeout: float | None = None
) -> None:
    """LISTEN until cancelled or the connection breaks. Returns at once, without `ready`, behind a pooler."""
    await hear(partial(_connected, url, "relaybox-listen", timeout), channel, ready, wake, timeout=timeout)


async def hear(
    connect: Callable[[], Awaitable[tuple[Any, bool]]],
    channel: str,
    ready: Callable[[], None],
    wake: Callable[[], None],
    *,
    timeout: float | None = None,
) -> None:
    """`listen` on a connection that is made for it."""
    pulse = timeout or PULSE
    with translated:
        raw, pooled = await connect()
        try:
            if pooled:
                return
            lost = asyncio.get_running_loop().create_future()
            raw.add_termination_listener(lambda _: None if lost.done() else lost.set_result(None))
            await raw.add_listener(channel, lambda *_: wake())
            ready()
            while not (await asyncio.wait([lost], timeout=pulse))[0]:
                await raw.fetchval("SELECT 1", timeout=pulse)  # a network that swallows packets says nothing
            raise StoreError("the listening connection was closed by the server")
        except Exception:
            raw.terminate()
            raise
        finally:
            with suppress(TimeoutError):
                await raw.close(timeout=GOODBYE)
