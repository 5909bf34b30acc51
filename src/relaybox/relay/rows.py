"""A delta as one message per row, for brokers: the handler of a relay that was told `rows=True`.

    one key of a delta        op   before   after
    inserted                  c    null     the row
    deleted and inserted      u    the row  the row
    deleted                   d    the row  null     and then a tombstone, where the sink has them
    of a snapshot             r    null     the row

A delta is one event to its group: it is done when the broker has accepted every message of it. What stops in between
sends it again from its beginning, with the same ids, and no later delta of the feed goes before it. Keys of a delta
differ, so its messages may go out in several calls at once; a tombstone follows when its `d` was accepted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from ..brokers.spi import Message
from ..codec import JSON, headers_to_text
from ..delivery import Delivery
from ..drivers.spi import AsyncRunner
from ..engine.dispatch import Durations
from ..engine.ranges.workers import RangeBatch
from ..errors import BatchFailed, BrokerUnavailable, ConnectionLost, Reject, StoreBusy, Undecodable
from ..event import Event, raw_created, raw_occurred
from ..feeds.changes import RowChange, changes
from ..store.feeds.store import FeedStore
from ..tasks import cancelled
from ..topics.deltas import DeltaPlace
from .publish import Prepare, Publisher

ROW = "feed.row"  # type of the messages
Wanted = Callable[[Event], bool]


class Tombstone(Event[Any]):
    """A row that is gone, once more: the end of its key in a topic that keeps the last message of each."""

    __slots__ = ()


def with_tombstones(prepare: Prepare) -> Prepare:
    """A tombstone goes where its row went, with the same key and id and without a body."""

    def prepared(event: Event) -> Message:
        message = prepare(event)
        return message._replace(body=b"", tombstone=True) if isinstance(event, Tombstone) else message

    return prepared


class RowPublisher:
    """Of `wanted` events; the others are passed over."""

    size = 1  # a delta at a time: the next one of its feed goes out when this is done

    def __init__(
        self,
        publisher: Publisher,
        durations: Durations,
        wanted: Wanted,
        store: FeedStore,
        db: AsyncRunner,
        *,
        calls: int,
        tombstones: bool,
    ) -> None:
        """`calls`: under way at a time. More rows than these have are never in memory, but for two chunks."""
        self.passed = 0  # events that were not wanted
        self._publisher = publisher
        self._durations = durations
        self._wanted = wanted
        self._store = store
        self._db = db
        self._calls = calls
        self._tombstones = tombstones

    async def handle(self, batch: RangeBatch) -> None:
        [event] = batch.events
        if not self._wanted(event):
            self.passed += 1
            return
        started = self._durations.now()
        sending = _Sending(batch, event)
        calls: set[asyncio.Task[None]] = set()
        try:
            async with aclosing(self._portions(event)) as portions:
                async for rows in portions:
                    while len(calls) >= self._calls:
                        ended, calls = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
                        for call in ended:
                            call.result()
                    if sending.stopped:
                        break
                    calls.add(asyncio.create_task(self._send(sending, rows), name="relaybox-rows"))
                else:
                    sending.left -= 1
            await asyncio.gather(*calls)
        except (ConnectionLost, StoreBusy) as error:  # nobody's fault
            raise BrokerUnavailable(f"the rows of event {event.id} could not be read: {error}") from error
        finally:
            await cancelled(*calls)
            self._durations.since(started)
        sending.conclude()

    async def _portions(self, event: Event) -> AsyncGenerator[list[_Row], None]:
        """As many rows as a call takes."""
        size, rows = self._publisher.size, _Rows(event)
        async with aclosing(changes(event, self._store, self._db)) as parts:
            async for part in parts:
                for at in range(0, len(part), size):
                    yield [rows.next(change) for change in part[at : at + size]]
        rows.check()

    async def _send(self, sending: _Sending, rows: Sequence[_Row]) -> None:
        gone = [row.tombstone() for row in rows if row.op == "d"] if self._tombstones else []
        sending.left += len(rows) + len(gone)
        await self._publisher.handle(_Call(sending, rows))
        if gone and not sending.stopped:
            await self._publisher.handle(_Call(sending, gone))


class _Row(NamedTuple):
    number: int  # in its delta, from 1
    op: str
    event: Event

    def tombstone(self) -> _Row:
        event = self.event
        stored = (event.id, event.type, event.aggregate_type, event.key, event.tenant, event.content_type, event.body)
        times = (raw_occurred(event), None, raw_created(event))
        return self._replace(event=Tombstone.stored((None, *stored, event.headers_text, *times), topic=event.topic))


class _Rows:
    """The messages of a delta, one after the other."""

    def __init__(self, delta: Event) -> None:
        place = self._place = DeltaPlace.of(delta)
        self._delta = delta
        self._number = self._deleted = self._inserted = 0
        headers = {name: value for name, value in delta.headers.items() if not name.startswith("feed")}
        headers |= {"feed": place.feed, "feed-epoch": place.epoch, "feed-n": str(place.n)}
        if place.snapshot:
            headers["feed-rows"] = delta.headers["feed-inserted"]
        self._headers = {op: headers_to_text({**headers, "feed-op": op}) for op in "cudr"}
        said = {"feed": place.feed, "epoch": place.epoch, "n": place.n, "refresh_id": delta.id}
        self._said = json.dumps(said, ensure_ascii=False, separators=(",", ":"))[1:]
        self._times = (raw_occurred(delta), None, raw_created(delta))

    def next(self, change: RowChange) -> _Row:
        key, before, after = change
        self._number += 1
        self._deleted += before is not None
        self._inserted += after is not None
        op = "r" if self._place.snapshot else "c" if before is None else "d" if after is None else "u"
        body = f'{{"op":"{op}","before":{before or "null"},"after":{after or "null"},{self._said}'.encode()
        id, delta = f"{self._place.epoch}-{self._place.n}-{self._number}", self._delta
        fields = (id, ROW, self._place.feed, key, delta.tenant, JSON, body, self._headers[op])
        return _Row(self._number, op, Event.stored((None, *fields, *self._times), topic=delta.topic))

    def check(self) -> None:
        """At the end. A row that is missing would be missing for good."""
        found, headers = (self._deleted, self._inserted), self._delta.headers
        said = int(headers["feed-deleted"]), int(headers["feed-inserted"])
        if found != said:
            raise Undecodable(
                f"delta {self._place.n} of feed {self._place.feed!r} has {found[0]:,} deleted and {found[1]:,} "
                f"inserted rows, and should have {said[0]:,} and {said[1]:,}"
            )


class _Sending:
    """How far a delta is."""

    def __init__(self, batch: RangeBatch, event: Event) -> None:
        self.left = 1  # messages that were not accepted yet, and one as long as there may be more
        self.stopped = False  # nothing more of it begins
        self._batch = batch
        self._event = event
        self._error: BaseException | None = None

    async def ours(self) -> bool:
        self.stopped = self.stopped or self._event.id not in await self._batch.ours()
        return not self.stopped

    def failed(self, row: int, error: BaseException) -> None:
        if self._error is None:
            self._error = Reject(f"row {row}: {error}") if isinstance(error, Reject) else error
        self.stopped = True

    def conclude(self) -> None:
        if self._error is not None:
            raise BatchFailed({self._event: self._error}, set())
        if self.left:
            raise BatchFailed({}, {self._event})


class _Call:
    """Messages of one call, as a publisher wants them."""

    def __init__(self, sending: _Sending, rows: Sequence[_Row]) -> None:
        self._sending = sending
        self._open = {row.number: Delivery(row.event, row.number, 0, 1, 0.0, hot=False) for row in rows}

    async def waiting(self) -> list[Delivery]:
        return list(self._open.values()) if self._open and await self._sending.ours() else []

    def done(self, delivery: Delivery) -> None:
        self.done_all([delivery])

    def done_all(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            del self._open[delivery.seq]
        self._sending.left -= len(deliveries)

    def failed(self, delivery: Delivery, error: BaseException) -> None:
        del self._open[delivery.seq]
        self._sending.failed(delivery.seq, error)
