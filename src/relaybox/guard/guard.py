"""The public face: Guard and AsyncGuard, twins over the same moves.

    guard = Guard.redis("redis://localhost:6379/0", consumer="email")
    with guard(message.id) as first:
        if first:
            send_mail(message)

    guard = Guard.sql("postgresql://localhost/shop", consumer="billing")
    with Session.begin() as session:
        if guard.mark(session, message.id):
            session.add(invoice)

What a delivery is told, and what it should do:

    True, then the block ends       handled, marked done: acknowledge
    True, then the block raises     the mark is taken back: do not acknowledge, redelivery works at once
    True, then the process dies     redelivery works when the lease ends
    False                           handled before: acknowledge and stop
    InProgress                      another delivery is at work: do not acknowledge
    GuardUnavailable                nobody knows (fail closed): do not acknowledge
    LeaseLost, after the block      this process was away longer than the lease: the effect may have happened twice
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from importlib import import_module
from typing import Any, ClassVar, Literal, ParamSpec, Self, TypeVar

from ..clock import SYSTEM_CLOCK, Clock
from ..drivers import open_async, open_sync
from ..drivers.script import Async, Script, Sync, commit, look, slow, twin
from ..drivers.spi import AsyncHandle, Handle
from ..durations import Duration, parse_duration
from ..errors import Closed, ConfigError, GuardUnavailable, InProgress, LeaseLost, MissingExtra, RelayboxError
from ..event import Event
from ..ids import new_token
from ..op import arun, run
from ..settings import Settings, chosen
from ..store.doctor import Finding
from ..store.grants import DatabaseRole, checked_role
from ..store.grants.ops import statements
from ..store.guard import open_guard_schema
from ..store.names import Tables
from ..store.schema import Migration
from ..tasks import cancelled
from ..twins import told_by
from .renewing import HeldKey, LeaseRenewer
from .retention import judge_retention
from .spi import PREFIX, GuardSteps, KeyState, Marks, Mode, key_of, terms
from .sql import SqlMarks

log = logging.getLogger("relaybox")

P = ParamSpec("P")
R = TypeVar("R")
OnUnavailable = Literal["closed", "open"]


class _Shared:
    """What the twins have in common: how they are made, and every decision. `_db` runs the moves."""

    is_async: ClassVar[bool]

    def __init__(
        self, marks: Marks, place: Any, *, on_unavailable: OnUnavailable = "closed", clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._marks = marks
        self._db = place
        self._open = on_unavailable == "open"
        self._clock = clock
        self._closed = False
        self.terms = marks.terms

    @classmethod
    def redis(
        cls,
        target: Any,
        *,
        consumer: str,
        ttl: Duration | None = None,
        lease: Duration | None = None,
        mode: Mode = "two-phase",
        prefix: str = PREFIX,
        timeout: Duration = "2s",
        on_unavailable: OnUnavailable = "closed",
        covers: Duration | None = None,
        settings: Settings | None = None,
    ) -> Self:
        """Marks in Redis: a URL, or a client of redis-py, which then brings its own timeouts and retries."""
        if on_unavailable not in ("closed", "open"):
            raise ConfigError(f"expected on_unavailable to be closed or open, got {on_unavailable!r}")
        agreed = terms(consumer, ttl, lease, mode, chosen(settings, Settings.load).guard)
        try:
            library = import_module("relaybox.guard.redis")
        except ModuleNotFoundError as error:
            raise MissingExtra(error.name or "redis", "redis") from error
        connect = library.aconnect if cls.is_async else library.connect
        place = connect(target, parse_duration(timeout, "timeout"))
        return cls(library.RedisMarks(agreed, prefix), place, on_unavailable=on_unavailable)._covering(covers)

    @classmethod
    def sql(
        cls,
        target: Any,
        *,
        consumer: str,
        ttl: Duration | None = None,
        lease: Duration | None = None,
        mode: Mode = "two-phase",
        table: str = "relaybox_guard",
        schema: str | None = None,
        covers: Duration | None = None,
        settings: Settings | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Self:
        """Marks in the consumer's database: a URL, a SQLAlchemy engine or a Django connection."""
        settings = chosen(settings, Settings.load)
        agreed = terms(consumer, ttl, lease, mode, settings.guard)
        tables = Tables(table, schema)
        place = (open_async if cls.is_async else open_sync)(target, callers=True).within(
            settings.delivery.batch_seconds
        )
        marks = SqlMarks(open_guard_schema(place.dialect, tables), agreed, clock)
        return cls(marks, place, clock=clock)._covering(covers)

    def _covering(self, covers: Duration | None) -> Self:
        if covers is not None:
            self.check_retention(covers=covers)
        return self

    def check_retention(self, **windows: Duration | None) -> list[Finding]:
        """Warn where marks are forgotten before messages: `check_retention(outbox_retention="30d", …)`.

        Any name will do (inbox_retention, broker_retention, …); None means that nothing limits it.
        """
        findings = list(judge_retention(self.terms, windows))
        for finding in findings:
            if finding.level != "ok":
                log.warning("%s; %s", finding.text, finding.fix)
        return findings

    # -- what both twins do ---------------------------------------------------------------------------

    @twin
    def try_mark(self, key: str | Event) -> Script[bool]:
        """For mode "setnx": mark the message now, before its effect. True: this is the first delivery, do it. False: it
        was marked before."""
        self._plain()
        return look(self._enter(self._held(key)))

    @twin
    def forget(self, key: str | Event) -> Script[None]:
        """For mode "setnx": take the mark back after a failure, so that a redelivery is the first again."""
        self._plain()
        return look(self._forget(self._held(key)))

    @slow
    def migrate(self) -> Script[list[Migration]]:
        """Create or upgrade the table. Safe to call from many processes at once, and again."""
        return commit(self._sql().schema.migrate())

    @twin
    def grants(self, role: DatabaseRole, *, to: str) -> Script[list[str]]:
        """The statements that give a role of the database what it needs of these marks to be a worker, operator, reader
        or dashboard. Nothing is changed: the owner of the table runs them."""
        return look(statements("guard", self._sql().schema, None, checked_role(role), to))

    @twin
    def verify(self) -> Script[None]:
        """Raise SchemaMissing, SchemaTooNew or SchemaDrift unless the table fits this release."""
        return look(self._sql().schema.verify_schema())

    @twin
    def purge(self, *, batch_size: int = 1000) -> Script[int]:
        """Delete expired marks of every consumer in the table, in short transactions. Returns how many."""
        if batch_size < 1:
            raise ConfigError(f"expected batch_size to be a positive int, got {batch_size}")
        total = 0
        while (gone := (yield from look(self._sql().purge(batch_size)))) == batch_size:
            total += gone
        return total + gone

    def __repr__(self) -> str:
        place = "sql" if isinstance(self._marks, SqlMarks) else "redis"
        return f"{type(self).__name__}.{place}(consumer={self.terms.consumer!r}, mode={self.terms.mode!r})"

    # -- decisions ------------------------------------------------------------------------------------

    def _held(self, key: str | Event) -> HeldKey:
        if self._closed:
            raise Closed("this guard is closed; make a new one")
        return HeldKey(key_of(key), new_token())

    def _enter(self, held: HeldKey) -> GuardSteps[bool]:
        try:
            state = yield from self._marks.enter(*held)
        except GuardUnavailable as error:
            self._allow(error, f"nobody knows whether {held.key!r} was handled before")
            return True
        return self._first(held, state)

    def _mark(self, held: HeldKey) -> GuardSteps[bool]:
        state = yield from self._sql().mark(*held)
        return self._first(held, state)

    def _first(self, held: HeldKey, state: KeyState) -> bool:
        if state == "in progress":
            raise InProgress(self.terms.consumer, held.key)
        return state == "first"

    def _finish(self, held: HeldKey) -> GuardSteps[None]:
        try:
            kept = yield from self._marks.finish(*held)
        except GuardUnavailable as error:
            self._allow(error, f"{held.key!r} was handled but is not marked: delivered again, it is handled again")
            return
        if not kept:
            raise LeaseLost(
                f"{held.key!r} was handled for consumer {self.terms.consumer!r}, but its lease had ended and another "
                "delivery may have handled it too; do not acknowledge it, and choose a longer lease if this process "
                "was only slow"
            )

    def _forget(self, held: HeldKey) -> GuardSteps[None]:
        try:
            yield from self._marks.forget(held.key)
        except GuardUnavailable as error:
            stays = f"{held.key!r} may stay marked for {self.terms.ttl}: delivered again, it counts as handled"
            self._allow(error, stays)

    @contextmanager
    def _leaving(self, held: HeldKey) -> Iterator[None]:
        """The block has failed and its error is on the way: nothing here may hide it."""
        try:
            yield
        except RelayboxError as error:
            stays = self.terms.lease if self.terms.two_phase else self.terms.ttl
            log.error("the mark of %r could not be taken back and stays for up to %s: %s", held.key, stays, error)

    @contextmanager
    def _renewing(self, held: HeldKey) -> Iterator[None]:
        """A renewal that fails is tried again: the lease may outlive the trouble."""
        try:
            yield
        except RelayboxError as error:
            log.warning("the lease of %r could not be renewed and will be tried again: %s", held.key, error)

    def _told(self, held: HeldKey, kept: bool) -> bool:
        if not kept:
            log.warning("the lease of %r was lost while it was handled", held.key)
        return kept

    def _allow(self, error: GuardUnavailable, consequence: str) -> None:
        """Go on without Redis if that was asked for."""
        if not self._open:
            raise GuardUnavailable(f"{error}; {consequence}. Do not acknowledge it") from error
        log.warning("%s; %s. Going on, because on_unavailable is open", error, consequence)

    # -- what only some guards can ----------------------------------------------------------------------

    def _sql(self) -> SqlMarks:
        if not isinstance(self._marks, SqlMarks):
            raise ConfigError("only a guard made with Guard.sql() has a table and can mark in a transaction")
        return self._marks

    def _plain(self) -> None:
        if self.terms.two_phase:
            raise ConfigError(
                "a two-phase guard marks around a block: use `with guard(event_id) as first`, or make the guard with "
                "mode='setnx', which marks before the effect and loses the message if the process dies between"
            )

    def _every(self) -> float:
        """Two renewals may fail before the lease ends."""
        return self.terms.lease.total_seconds() / 3

    def _check_function(self, function: Callable[..., Any]) -> None:
        if inspect.iscoroutinefunction(function) != self.is_async:
            other = "Guard" if self.is_async else "AsyncGuard"
            name = getattr(function, "__qualname__", repr(function))
            raise ConfigError(f"{name} does not fit a {type(self).__name__}; use {other}")


def _first_argument(event: Any, *_: Any, **__: Any) -> Any:
    return event


class Guard(_Shared, Sync):
    """Lets a message be handled once, however often it is delivered: it keeps a mark for each one that was handled. For
    synchronous programs, safe to use from many threads."""

    is_async = False

    def __init__(self, marks: Marks, place: Any, **options: Any) -> None:
        super().__init__(marks, place, **options)
        self._renewer = LeaseRenewer(self._renew, self._every())

    def _run(self, steps: GuardSteps[R]) -> R:
        return self._db.run(steps, tx=False)  # type: ignore[no-any-return]

    def _renew(self, held: HeldKey) -> bool:
        """False: lost for good."""
        with self._renewing(held):
            return self._told(held, self._run(self._marks.renew(*held)))
        return True

    def _keeping(self, held: HeldKey) -> AbstractContextManager[None]:
        return self._renewer.renewing(held) if self.terms.two_phase else nullcontext()

    @contextmanager
    def __call__(self, key: str | Event) -> Iterator[bool]:
        """Around the effect of a message. True: this is the first delivery, do it. False: it was handled before. If
        another delivery is at work, InProgress is raised. `key`: the id of the message, or an event."""
        held = self._held(key)
        if not self._run(self._enter(held)):
            yield False
            return
        try:
            with self._keeping(held):
                yield True
        except BaseException:
            with self._leaving(held):
                self._run(self._marks.leave(*held))
            raise
        self._run(self._finish(held))

    def once(
        self, *, key: Callable[..., str | Event] = _first_argument
    ) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
        """The function runs for the first delivery only; a duplicate returns None. `key` gets its arguments."""

        def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
            self._check_function(function)

            @functools.wraps(function)
            def guarded(*args: P.args, **kwargs: P.kwargs) -> R | None:
                with self(key(*args, **kwargs)) as first:
                    return function(*args, **kwargs) if first else None

            return guarded

        return decorate

    def mark(self, handle: Handle, key: str | Event) -> bool:
        """Mark the message in the transaction of the handle, with its effect. True: this is the first delivery, do it.
        False: it was handled before. Waits for another transaction that marks the same message; what is rolled back
        was never marked."""
        held = self._held(key)
        connection = self._sql().connection(handle)
        if connection.is_async:
            raise ConfigError(f"{type(handle).__qualname__} is an async handle; use AsyncGuard")
        return run(self._mark(held), connection)

    def close(self) -> None:
        """Safe to repeat. A client that was handed in stays open."""
        if not self._closed:
            self._closed = True
            try:
                self._renewer.close()
            finally:
                self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@told_by(Guard)
class AsyncGuard(_Shared, Async):
    """As `Guard`, for asyncio programs."""

    is_async = True

    async def _run(self, steps: GuardSteps[R]) -> R:
        return await self._db.run(steps, tx=False)  # type: ignore[no-any-return]

    async def _renew(self, held: HeldKey) -> bool:
        """One that is not answered ends in time for another."""
        place = self._db.within(self._every() / 2) if isinstance(self._marks, SqlMarks) else self._db
        with self._renewing(held):
            return self._told(held, await place.run(self._marks.renew(*held), tx=False))
        return True

    @asynccontextmanager
    async def _keeping(self, held: HeldKey) -> AsyncIterator[None]:
        renewing = asyncio.create_task(self._keep(held)) if self.terms.two_phase else None
        try:
            yield
        finally:
            await cancelled(renewing)

    async def _keep(self, held: HeldKey) -> None:
        await self._clock.sleep(self._every())
        while await self._renew(held):
            await self._clock.sleep(self._every())

    @asynccontextmanager
    async def __call__(self, key: str | Event) -> AsyncIterator[bool]:
        held = self._held(key)
        if not await self._run(self._enter(held)):
            yield False
            return
        try:
            async with self._keeping(held):
                yield True
        except BaseException:
            with self._leaving(held):
                await self._run(self._marks.leave(*held))
            raise
        await self._run(self._finish(held))

    def once(
        self, *, key: Callable[..., str | Event] = _first_argument
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R | None]]]:
        def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R | None]]:
            self._check_function(function)

            @functools.wraps(function)
            async def guarded(*args: P.args, **kwargs: P.kwargs) -> R | None:
                async with self(key(*args, **kwargs)) as first:
                    return await function(*args, **kwargs) if first else None

            return guarded

        return decorate

    async def mark(self, handle: AsyncHandle, key: str | Event) -> bool:
        held = self._held(key)
        connection = self._sql().connection(handle)
        steps = self._mark(held)
        return await arun(steps, connection) if connection.is_async else run(steps, connection)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._db.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
