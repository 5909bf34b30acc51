"""How operators look at events and change what becomes of them: one way for outboxes, groups and inboxes.

    outbox.dead.replay(Where(type="OrderPlaced", since="2h"), reason="the warehouse is back")
    outbox.events.list(Where(key="order-7"))
    outbox.keys.release("order-7")

A product hands in a desk: its store, with the ops of an `EventStore`, and whom to tell. Changes of many events go by
batches, each in a transaction of its own, over their numbers: no event is read, and none is changed twice by one call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, ClassVar, Final, Generic, Literal, Protocol, TypeVar, Unpack

from . import faults
from .audit import Audit, Auditor, Change
from .drivers.script import Async, Script, Sync, look, twin
from .durations import Duration, parse_duration
from .errors import ConfigError
from .facts import Observers, Replayed
from .op import Op
from .store.events import ROOM, EventPage, Kind, Search
from .values import ALL, BlockedKey, DeadLetter, Progress, StoredEvent, Where

BATCH: Final = 500  # events per transaction, and ids per search
OF_INBOXES: Final = frozenset({"sender"})

E = TypeVar("E", DeadLetter, StoredEvent)
OnProgress = Callable[[Progress], object]
Which = str | Iterable[str] | Where


class EventStore(Protocol):
    """The ops of a store. `open` events still have work, `dead` ones were given up, `done` ones are finished."""

    def newest(self, now: datetime | None) -> Op[tuple[int, datetime]]: ...
    def numbers_of(self, ids: Sequence[str], sender: str | None) -> Op[list[int] | None]:
        """None: it looks for ids itself, as the Where of a search has them."""
        ...

    def events(self, kind: Kind, search: Search, limit: int, room: int) -> Op[EventPage]: ...
    def count_events(self, kind: Kind, search: Search, changeable: bool = False) -> Op[int]:
        """`changeable`: only those that can be replayed or discarded, as `event_numbers` has them."""
        ...

    def event_numbers(self, kind: Kind, search: Search, limit: int) -> Op[list[int]]: ...
    def replay(self, kind: Kind, seqs: Sequence[int], cutoff: datetime, now: datetime | None) -> Op[int]: ...
    def discard(self, kind: Kind, seqs: Sequence[int], now: datetime | None) -> Op[int]: ...
    def blocked(self, limit: int, now: datetime | None) -> Op[list[BlockedKey]]: ...
    def release_key(self, key: str, to: int | None, now: datetime | None) -> Op[bool]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Desk:
    """What operators work with at one product."""

    db: Any
    store: EventStore
    auditor: Auditor
    observers: Observers
    woken: Callable[[], None]  # there may be something to do
    of: str = ""  # behind what is changed: " of group orders/mail"
    lacks: Collection[str] = OF_INBOXES  # fields of a Where that mean nothing here
    counts: bool = False  # its keys have numbers to go on with

    @property
    def now(self) -> datetime | None:
        return self.auditor.clock.database_now()


class _AtDesk:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._db = desk.db
        self._clock = desk.auditor.clock
        self._store = desk.store


class _Kept(_AtDesk, Generic[E]):
    """What both twins of both classes do, as scripts."""

    _what: ClassVar[str]
    _seen: ClassVar[Sequence[Kind]]
    _replayed: ClassVar[Sequence[Kind]]
    _discarded: ClassVar[Sequence[Kind]]

    def _shown(self, found: StoredEvent) -> E:
        raise NotImplementedError

    @twin
    def get(self, id: str, *, sender: str | None = None) -> Script[E | None]:
        """One, by its id; in an inbox that of this sender, if several have sent the same id. None: there is none."""
        if sender is not None:
            self._check(Where(sender=sender))
        found = yield from look(self._page(Where(ids=[id], sender=sender), self._seen, 0, 1))
        return found[0] if found else None

    @twin
    def count(self, where: Where = ALL) -> Script[int]:
        """How many there are."""
        self._check(where)
        return look(self._count(where, self._seen))

    @twin
    def replay(
        self, which: Which, *, dry_run: bool = False, progress: OnProgress | None = None, **audit: Unpack[Audit]
    ) -> Script[int]:
        """Handle these again: due now, with fresh attempts. An id, several, or a Where; `ALL` for all there are.

        Returns how many. Each is replayed at most once by a call, even if it dies again meanwhile. Batches commit one
        by one. With `dry_run` nothing is changed, and the number is how many it would be."""
        count = yield from self._change("replay", which, dry_run, progress, audit)
        if count and not dry_run:
            self._desk.observers(Replayed(count))
        return count

    @twin
    def discard(
        self, which: Which, *, dry_run: bool = False, progress: OnProgress | None = None, **audit: Unpack[Audit]
    ) -> Script[int]:
        """Give these up for good. A key that waits for one of them goes on. Returns how many, as `replay` does."""
        return self._change("discard", which, dry_run, progress, audit)

    # -- searching --------------------------------------------------------------------------------

    def _check(self, where: Where) -> None:
        if not isinstance(where, Where):
            raise ConfigError(f"expected a Where, got {type(where).__name__}; ALL finds everything")
        wrong = [name for name in where.given if name in self._desk.lacks]
        if wrong:
            raise ConfigError(f"events{self._desk.of or ' of an outbox'} have no {wrong[0]}; leave it out of the Where")

    def _search(self, where: Where, after: int = 0) -> Op[Search]:
        now = None
        if {timedelta} & {type(where.since), type(where.until)}:
            _, now = yield from self._store.newest(self._desk.now)
        search = Search(where, _moment(where.since, now), _moment(where.until, now), after=after)
        if where.ids is None:
            return search
        seqs = yield from self._store.numbers_of(list(dict.fromkeys(where.ids)), where.sender)
        if seqs is None:
            return search
        return search._replace(seqs=seqs, upto=max(seqs, default=0))

    def _page(self, where: Where, kinds: Sequence[Kind], after: int, limit: int) -> Op[list[E]]:
        if limit < 1:
            raise ConfigError(f"expected limit to be a positive int, got {limit}")
        search = yield from self._search(where, after=after)
        found: list[StoredEvent] = []
        room = ROOM
        for kind in kinds:
            page = yield from self._store.events(kind, search, limit, max(room, 0))
            found += page.events
            room -= sum(len(one.event.body or b"") for one in page.events)  # none: it cannot be read
            if not page.ended:  # what is behind comes with the next page, of other kinds too
                search = search._replace(upto=min(search.upto, _seq(page.events[-1])))
        return [self._shown(one) for one in sorted(found, key=_seq)[:limit] if _seq(one) <= search.upto]

    def _count(self, where: Where, kinds: Sequence[Kind], changeable: bool = False) -> Op[int]:
        search = yield from self._search(where)
        total = 0
        for kind in kinds:
            total += yield from self._store.count_events(kind, search, changeable)
        return total

    # -- changing ---------------------------------------------------------------------------------

    def _parts(self, which: Which) -> Iterator[Where]:
        """Splits any number of ids into searches for so many at a time."""
        where = ALL
        if isinstance(which, Where):
            self._check(which)
            if which.ids is None:
                yield which
                return
            where, which = which, which.ids
        ids = iter([which] if isinstance(which, str) else which)
        while some := list(islice(ids, BATCH)):
            yield replace(where, ids=some)

    def _change(
        self, verb: Literal["replay", "discard"], which: Which, dry_run: bool, progress: OnProgress | None, audit: Audit
    ) -> Script[int]:
        if not isinstance(which, (str, Where, Iterable)):
            raise ConfigError(f"expected an id, several ids or a Where, got {type(which).__name__}; ALL is everything")
        kinds = self._replayed if verb == "replay" else self._discarded
        if isinstance(which, Iterable) and not isinstance(which, (str, Collection)) and (dry_run or progress):
            which = list(which)  # it is gone through twice
        total = None
        if dry_run or progress is not None:
            total = 0
            for where in self._parts(which):
                total += yield from look(self._count(where, kinds, changeable=True))
        if dry_run:
            return total or 0
        change = self._desk.auditor.begin(verb, self._what + self._desk.of, audit)
        limits = None
        for where in self._parts(which):
            search = yield from look(self._search(where))  # first: a store may have to give ids their numbers
            newest, cutoff = limits = limits or (yield from look(self._store.newest(self._desk.now)))
            search = search._replace(upto=min(search.upto, newest))
            for kind in kinds:
                walk = _Walk(self._store, verb, kind, search, cutoff)
                while walk.more:
                    yield from change.commit(walk.batch(self._desk.now))
                    if progress is not None:
                        progress(Progress(change.changed or 0, total, verb))
        return self._told(change)

    def _told(self, change: Change) -> int:
        change.tell()
        if change.changed:
            self._desk.woken()
        return change.changed or 0


def _seq(found: StoredEvent) -> int:
    return found.event.seq or 0


def _moment(value: datetime | Duration | None, now: datetime | None) -> datetime | None:
    if value is None or isinstance(value, datetime):
        return value
    assert now is not None
    return now - parse_duration(value)


@dataclass(slots=True, eq=False)
class _Walk:
    """The batches of a change, by number. What is younger than the cut-off is left alone."""

    store: EventStore
    verb: str
    kind: Kind
    search: Search
    cutoff: datetime
    more: bool = True

    def batch(self, now: datetime | None) -> Op[int]:
        seqs = yield from self.store.event_numbers(self.kind, self.search, BATCH)
        self.more = len(seqs) == BATCH
        if not seqs:
            return 0
        self.search = self.search._replace(after=seqs[-1])
        if self.verb == "discard":
            return (yield from self.store.discard(self.kind, seqs, now))
        faults.hit("replay.before")
        count = yield from self.store.replay(self.kind, seqs, self.cutoff, now)
        faults.hit("replay.after")
        return count


class _Dead(_Kept[DeadLetter]):
    _what = "dead letters"
    _seen = _replayed = _discarded = ("dead",)

    def _shown(self, found: StoredEvent) -> DeadLetter:
        assert found.ended_at is not None
        return DeadLetter(found.event, found.attempts or 0, found.error, found.ended_at)

    @twin
    def list(self, where: Where = ALL, *, after: int = 0, limit: int = 100) -> Script[list[DeadLetter]]:
        """The oldest first. A page ends at `limit`, or earlier at about 16 MiB of payloads; page on with
        `after=letters[-1].event.seq` until one is empty."""
        self._check(where)
        return look(self._page(where, self._seen, after, limit))


class _Events(_Kept[StoredEvent]):
    _what = "events"
    _seen = ("open", "dead", "done")
    _replayed = ("done", "dead")  # what dies again meanwhile is younger than the cut-off
    _discarded = ("dead", "open")

    def _shown(self, found: StoredEvent) -> StoredEvent:
        return found

    @twin
    def list(
        self, where: Where = ALL, *, state: Kind | None = None, after: int = 0, limit: int = 100
    ) -> Script[list[StoredEvent]]:
        """The oldest first: those that are `open` (waiting, claimed, in retry or held back), `dead`, `done`, or all.
        A page ends at `limit`, or earlier at about 16 MiB of payloads; page on with `after=events[-1].event.seq` until
        one is empty."""
        self._check(where)
        if state not in (None, *self._seen):
            raise ConfigError(f"expected state to be open, dead, done or None, got {state!r}")
        return look(self._page(where, self._seen if state is None else (state,), after, limit))


class DeadLetters(_Dead, Sync):
    """Events that were given up, of an outbox, a group or an inbox. Errors are raised: an outage must not look like "no
    dead letters"."""


class AsyncDeadLetters(_Dead, Async):
    """As `DeadLetters`, for asyncio programs."""


class Events(_Events, Sync):
    """The events of an outbox, a group or an inbox in every state. Finished ones are replayed too, and open ones are
    discarded too; a group that reads a log replays no finished ones (`seek`), and discards of the open ones those that
    failed and those behind them."""


class AsyncEvents(_Events, Async):
    """As `Events`, for asyncio programs."""


class _Keys(_AtDesk):
    @twin
    def release(self, key: str, *, to: int | None = None, **audit: Unpack[Audit]) -> Script[bool]:
        """Let a key go on without the event it waits for; in an inbox with the number `to`, or with the lowest there
        is. That event stays a dead letter, or is tried on by itself. False: the key does not wait."""
        if not isinstance(key, str) or not key:
            raise ConfigError(f"expected a key, got {key!r}")
        if to is not None and not self._desk.counts:
            raise ConfigError("keys go on with a number only in an inbox; leave `to` out")
        if to is not None and (type(to) is not int or to < 0):
            raise ConfigError(f"expected the number to go on with to be at least 0, got {to!r}")
        op = self._store.release_key(key, to, self._desk.now)
        released = yield from self._desk.auditor.audited("release", f"key {key}{self._desk.of}", op, audit)
        self._desk.woken()
        return released

    @twin
    def list(self, limit: int = 100) -> Script[list[BlockedKey]]:
        """Keys that do not go on, the longest blocked first."""
        return look(self._store.blocked(limit, self._desk.now))


class Keys(_Keys, Sync):
    """Keys of ordered events that wait: for a retry, for a dead letter, or for a number that has not come."""


class AsyncKeys(_Keys, Async):
    """As `Keys`, for asyncio programs."""
