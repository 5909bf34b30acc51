"""Writing events in the caller's transaction.

Order of things, and what a crash between them means:

    before_write(events)     may change or suppress them; its error reaches the caller, nothing is written
    contracts                what is left must keep them, if the outbox was given any; likewise
    check                    what waits for their tenants, if there is a cap: see caps.py
    seal                     payloads are encrypted, if the outbox has a vault; new data keys are inserted, in the
                             caller's transaction
    INSERT                   event and pending row, one round trip; in the caller's transaction. Events with a topic go
                             where the topic is (see route.py), one round trip for each
    after_write(events)      still inside the transaction; errors are logged, not raised
    the caller's COMMIT      nothing of ours runs in it
    after_commit(events)     once per write, after a successful commit, where the handle can tell; a crash
                             before it loses only the short cut: the poller delivers
    after_rollback(events)   likewise
A commit whose reply was lost fires neither.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .. import faults
from ..clock import Clock
from ..contracts import Contracts
from ..drivers import wrap
from ..drivers.spi import AsyncConnection, Connection
from ..engine.wakeups import Notifier, ThreadNotifier
from ..errors import ConfigError, InvalidEvent, NoTransaction, StoreError
from ..event import Event, topics_of
from ..facts import Observers, Written
from ..hooks import WriterHook
from ..op import Op
from ..sealing import Sealing
from ..store.claims import Claim
from ..store.outbox import OutboxStore
from .caps import TenantCaps, WaitsIn
from .route import Routes, labelled

log = logging.getLogger("relaybox")


@dataclass(slots=True)
class Routing:
    """The events' topics and, once they are written, the places in the list of those that went into the outbox."""

    topics: Sequence[str | None]
    here: Sequence[int] = ()


class Ticket(NamedTuple):
    """A write on its way: what will be inserted, who claims it, and when that lease ends by our clock."""

    events: Sequence[Event]
    claim: Claim | None
    lease_end: float
    routing: Routing | None = None  # None: all are for the outbox


class HandOver(NamedTuple):
    """What is handed over after a commit we saw."""

    events: Sequence[Event]
    seqs: Sequence[int]
    claim: Claim | None
    lease_end: float


@dataclass(eq=False, slots=True, kw_only=True)
class Writer:
    store: OutboxStore
    clock: Clock
    observers: Observers
    hooks: Sequence[WriterHook] = ()
    contracts: Contracts | None = None
    claim: Callable[[], Claim | None] = lambda: None
    committed: Callable[[HandOver], None] | None = None
    unseen: Callable[[], None] | None = None
    plain: bool = False
    called: bool = False  # by the function for roles that may not insert
    routes: Callable[[], Routes] | None = None
    notifier: Notifier | ThreadNotifier | None = None
    caps: TenantCaps | None = None
    sealing: Sealing | None = None  # encrypts payloads, after hooks and contracts have seen them

    def connection(self, handle: Any) -> Connection | AsyncConnection:
        connection = wrap(handle)
        if connection.dialect != self.store.dialect:
            raise ConfigError(
                f"this outbox is on {self.store.dialect}, the handle is a {connection.dialect} connection; "
                "events must be written to the database of the business rows"
            )
        if not connection.in_transaction():
            raise NoTransaction(
                "write() needs an open transaction, so that the event commits or rolls back with your rows; this "
                f"{type(handle).__module__}.{type(handle).__qualname__} is in autocommit mode. Begin one first"
            )
        return connection

    def prepare(self, events: Sequence[Event], connection: Connection | AsyncConnection) -> Ticket | None:
        """None: a hook suppressed the write."""
        _check(events)
        for hook in self.hooks:
            events = list(hook.before_write(events) or ())
            _check(events)
        if not events:
            return None
        if self.contracts is not None:
            for event in events:
                self.contracts.check(event)
        topics = topics_of(events)
        routing = Routing(topics) if any(topics) else None
        if routing is not None and self.routes is None:  # where there are no topics, it is what relays route by
            events, routing = [labelled(event, topic) for event, topic in zip(events, topics, strict=True)], None
        # Only a handle that tells of its commit may claim: nobody else would hand the rows over.
        claim = None if connection.silent else self.claim()
        lease_end = self.clock.monotonic() + claim.lease.total_seconds() if claim is not None else 0.0
        return Ticket(events, claim, lease_end, routing)

    def capped(self, ticket: Ticket) -> Op[Ticket]:
        """For outboxes with `caps`; what goes into a log has none."""
        assert self.caps is not None
        here, routing = WaitsIn(self.store), ticket.routing
        if routing is None:
            return ticket._replace(events=(yield from self.caps.check(ticket.events, [here] * len(ticket.events))))
        assert self.routes is not None
        routes = self.routes()
        queues = yield from routes.queues({topic for topic in routing.topics if topic is not None})
        places: list[WaitsIn | None] = []
        for topic in routing.topics:
            if topic is None or topic not in queues:  # what is not configured goes into the outbox
                places.append(here)
            else:
                queue = queues[topic]
                places.append(None if queue is None else WaitsIn(queue, topic))
        try:
            return ticket._replace(events=(yield from self.caps.check(ticket.events, places)))
        except StoreError:
            routes.forget(queues)  # it may be why
            raise

    def op(self, ticket: Ticket, connection: Connection | AsyncConnection) -> Op[list[int]]:
        faults.hit("write.before")
        now, copy, routing = self.clock.database_now(), connection.copy, ticket.routing
        if self.caps is not None and copy:  # a batch of several tenants would be counted for none
            copy = len({event.tenant for event in ticket.events}) == 1

        def into_outbox(events: Sequence[Event]) -> Op[list[int]]:
            if self.plain:
                return self.store.write_plain(events, now)
            if self.called:
                return self.store.write_called(events)
            return self.store.write(events, ticket.claim, now, copy=copy)

        if routing is None:
            seqs = yield from into_outbox(ticket.events)
        else:
            assert self.routes is not None
            write = self.routes().write
            seqs, routing.here = yield from write(ticket.events, routing.topics, into_outbox, now, copy=copy)
        faults.hit("write.after")
        return seqs

    def finish(self, ticket: Ticket, seqs: Sequence[int], connection: Connection | AsyncConnection) -> list[str]:
        events = ticket.events
        self._call("after_write", events)
        if self.observers:
            self.observers(Written(len(events)))
        routing = ticket.routing
        if routing is None:
            hand_over = HandOver(events, seqs, ticket.claim, ticket.lease_end)
        else:
            mine, numbers = [events[place] for place in routing.here], [seqs[place] for place in routing.here]
            hand_over = HandOver(mine, numbers, ticket.claim, ticket.lease_end)
        notifier = self.notifier if routing is not None and len(routing.here) < len(events) else None
        seen = (bool(self.hooks) or self.committed is not None or notifier is not None) and connection.after_commit(
            lambda: self._after_commit(events, hand_over, notifier)
        )
        if self.hooks:
            connection.after_rollback(lambda: self._call("after_rollback", events))
        if not seen and self.unseen is not None:
            self.unseen()
        if not seen and notifier is not None:
            notifier.later()
        return [event.id for event in events]

    def wake_after(self, connection: Connection | AsyncConnection) -> None:
        """Wakes the readers of topics once the transaction has committed, for what was not written by `op`."""
        if self.notifier is not None and not connection.after_commit(self.notifier.soon):
            self.notifier.later()

    def _after_commit(
        self, events: Sequence[Event], hand_over: HandOver, notifier: Notifier | ThreadNotifier | None
    ) -> None:
        faults.hit("write.committed")
        try:
            if self.committed is not None and hand_over.events:
                self.committed(hand_over)
            if notifier is not None:
                notifier.soon()
        except Exception:
            log.exception("the hand-over after commit failed; the poller will deliver")
        self._call("after_commit", events)

    def _call(self, name: str, events: Sequence[Event]) -> None:
        for hook in self.hooks:
            try:
                getattr(hook, name)(events)
            except Exception:
                log.exception("%s of %s failed", name, type(hook).__name__)


def numbers_of(given: Sequence[Event], ids: Sequence[str], numbers: Sequence[int]) -> list[int | None]:
    """The numbers of the given events; None where hooks have written another or none."""
    written = dict(zip(ids, numbers, strict=True))
    return [written.get(event.id) for event in given]


def _check(events: Sequence[Event]) -> None:
    if isinstance(events, Event):
        raise InvalidEvent("write_all() takes a list of events; write() takes one")
    for event in events:
        if not isinstance(event, Event):
            raise InvalidEvent(f"expected an Event, got {type(event).__name__}; Event(type, payload) makes one")
