"""Which member of a group handles an event, and how it is called.

    group filter, then member filters   rejected by all: done, and counted as filtered; one that raises is a failure
    among those that are left           the same member for the same key, whatever process asks

With a payload type, handlers are given the decoded payload, and the event too if they take a second argument.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, TypeAlias

from ..clock import SYSTEM_CLOCK, Clock
from ..contracts.models import Model, model_of
from ..engine.ranges.workers import RangeBatch
from ..engine.threads import ListenerThreads
from ..errors import BatchFailed, ConfigError, GroupError, Unroutable
from ..event import Event
from ..ids import key_hash
from ..listeners import is_async

log = logging.getLogger("relaybox")

TIMED = 16  # calls after each heartbeat
Filter: TypeAlias = Callable[[Event], bool]
PayloadType: TypeAlias = Any  # a model, or event type -> model


class _Nothing:
    """What to await for an event that nobody wants."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_NOTHING = _Nothing()


class Payloads:
    """Decodes payloads: all of one type, or one per event type."""

    def __init__(self, payload_type: PayloadType) -> None:
        self._one: Model | None = None
        self._by_type: dict[str, Model] = {}
        if isinstance(payload_type, Mapping):
            self._by_type = {name: model_of(kind, is_json=True, checked=True) for name, kind in payload_type.items()}
        else:
            self._one = model_of(payload_type, is_json=True, checked=True)

    def read(self, event: Event) -> Any:
        model = self._one or self._by_type.get(event.type)
        if model is None:
            raise Unroutable(f"no payload type for event type {event.type!r}; add it to payload_type")
        return model.read(event.body)


class Member:
    """A handler under a name."""

    __slots__ = ("_arguments", "_function", "_payloads", "_threads", "call", "filter", "id")

    def __init__(
        self,
        id: str,
        handler: Callable[..., Any],
        filter: Filter | None,
        payloads: Payloads | None,
        threads: ListenerThreads,
    ) -> None:
        if not callable(handler):
            raise ConfigError(f"expected the handler of {id!r} to be callable, got {type(handler).__name__}")
        if filter is not None and (not callable(filter) or inspect.iscoroutinefunction(filter)):
            raise ConfigError(f"expected the filter of {id!r} to be a plain function of an event that returns a bool")
        self.id = id
        self.filter = filter
        self._payloads = payloads
        self._threads = threads
        self._arguments = _arguments(handler)
        self._function: Callable[..., Awaitable[Any]] = handler if is_async(handler) else self._in_thread(handler)
        self.call = self._function if payloads is None else self._typed  # of one event; without a type nothing is added

    def _in_thread(self, handler: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any) -> None:
            result = await self._threads.call(handler, *arguments)
            if inspect.isawaitable(result):
                await result

        return call

    def _typed(self, event: Event) -> Awaitable[Any]:
        assert self._payloads is not None
        payload = self._payloads.read(event)
        return self._function(payload, event) if self._arguments > 1 else self._function(payload)

    async def call_all(self, events: list[Event]) -> None:
        """As one batch. Those that cannot be decoded have failed, the others are handled."""
        if self._payloads is None:
            await self._function(events)
            return
        errors: dict[Event, BaseException] = {}
        readable, payloads = [], []
        for event in events:
            try:
                payloads.append(self._payloads.read(event))
                readable.append(event)
            except Exception as error:
                errors[event] = error
        if readable:
            await (self._function(payloads, readable) if self._arguments > 1 else self._function(payloads))
        if errors:
            raise BatchFailed(errors)


def _arguments(handler: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return 1
    return len([p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)])


class Durations:
    """How long handlers take."""

    def __init__(self, clock: Clock) -> None:
        self.now = clock.monotonic
        self.events = 0
        self.seconds = 0.0

    def since(self, started: float, events: int = 1) -> None:
        self.events += events
        self.seconds += self.now() - started

    @property
    def mean(self) -> float:
        return self.seconds / self.events if self.events else 0.0


class Members:
    """Those of one group in this process; the engine's handler, one event at a time. A few calls after each heartbeat
    are timed: a clock at every event would cost more than it tells."""

    def __init__(self, group: str, filter: Filter | None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._group = group
        self._durations = Durations(clock)
        self._to_time = TIMED
        self._filter = filter
        self._members: list[Member] = []  # by id
        self._plain = False
        self._only: Callable[[Event], Awaitable[Any]] | None = None  # where there is nothing to choose
        self.filtered = 0

    def __len__(self) -> int:
        return len(self._members)

    def ids(self) -> list[str]:
        return [member.id for member in self._members]

    def add(self, member: Member) -> None:
        if member.id in self.ids():
            raise GroupError(f"group {self._group!r} has a consumer {member.id!r} already; choose another id")
        self._set([*self._members, member])

    def remove(self, id: str) -> None:
        if id not in self.ids():
            raise GroupError(f"group {self._group!r} has no consumer {id!r}; it has {', '.join(self.ids()) or 'none'}")
        self._set([member for member in self._members if member.id != id])

    def _set(self, members: list[Member]) -> None:
        self._members = sorted(members, key=lambda member: member.id)
        self._plain = len(members) == 1 and self._filter is None and members[0].filter is None
        self._only = members[0].call if self._plain and not self._to_time else None

    def __call__(self, event: Event, attempts: int = 1) -> Awaitable[Any]:
        if self._only is not None:
            return self._only(event)
        member = self._choose(event)
        if member is None:
            self.filtered += 1
            return _NOTHING
        if not self._to_time:
            return member.call(event)
        self._to_time -= 1
        if not self._to_time:
            self._set(self._members)
        return self._timed(member, event)

    async def _timed(self, member: Member, event: Event) -> None:
        started = self._durations.now()
        try:
            await member.call(event)
        finally:
            self._durations.since(started)

    def mean(self) -> float:
        """Seconds per event; and the next few are timed."""
        self._to_time = TIMED
        self._set(self._members)
        return self._durations.mean

    def _choose(self, event: Event) -> Member | None:
        if self._filter is not None and not self._filter(event):
            return None
        willing = [member for member in self._members if member.filter is None or member.filter(event)]
        if not willing:
            return None
        chosen = willing[key_hash(event.id if event.key is None else event.key) % len(willing)]
        log.debug("event %s goes to consumer %s of group %s", event.id, chosen.id, self._group)
        return chosen

    async def call_all(self, events: list[Event]) -> None:
        """As batches, one for each member that is concerned."""
        started = self._durations.now()
        try:
            await self._call_all(events)
        finally:
            self._durations.since(started, len(events))

    async def _call_all(self, events: list[Event]) -> None:
        if self._plain:
            await self._members[0].call_all(events)
            return
        errors: dict[Event, BaseException] = {}
        shares: dict[Member, list[Event]] = {}
        for event in events:
            try:
                member = self._choose(event)
            except Exception as error:
                errors[event] = error
                continue
            if member is None:
                self.filtered += 1
            else:
                shares.setdefault(member, []).append(event)
        calls = [member.call_all(share) for member, share in shares.items()]
        results = await asyncio.gather(*calls, return_exceptions=True)
        for share, result in zip(shares.values(), results, strict=True):
            if isinstance(result, BatchFailed):
                errors.update(result.errors)
            elif isinstance(result, BaseException):
                if len(shares) == 1 and not errors:
                    raise result
                errors.update(dict.fromkeys(share, result))
        if errors:
            raise BatchFailed(errors)


class Batches:
    """The engine's handler, many events at a time."""

    def __init__(self, members: Members, size: int) -> None:
        self.size = size
        self._members = members

    async def handle(self, batch: RangeBatch) -> None:
        await self._members.call_all(batch.events)
