"""What an operator asks of an inbox: how it stands, its messages, another run of them, and less of the past."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ...event import Event
from ...ids import key_hash
from ...op import Op
from ..event_rows import seconds
from ..events import Kind
from .meta import InboxMeta
from .order import number_in, numbered_key, place_of, position_of
from .settle import NextNumber

DISCARDED = "discarded"  # the error of an open message that is given up


@dataclass(frozen=True, slots=True)
class InboxStatus:
    """One look at an inbox. Counts above 10,000 are estimates where counting would be slow."""

    pending: int
    seen: int
    dead: int
    oldest: timedelta  # since the oldest waiting message was received
    throughput: float  # processed per second, over the last minute at most
    average: timedelta | None  # from received to processed, of those
    processors: int  # alive


class InboxOperate(InboxMeta):
    # -- seeing -----------------------------------------------------------------------------------

    def counts(self) -> Op[tuple[int, int, int]]:
        """Waiting, ever accepted, dead."""
        pending, seen, dead = (yield self.sql["inbox.status"].bind()).rows[0]
        return int(pending), int(seen), int(dead)

    def status(self, now: datetime | None) -> Op[InboxStatus]:
        counts = yield from self.counts()
        pace = yield self.sql["inbox.status.pace"].bind(now=self.to_time(now))
        oldest, processed, lasted, waited, processors = pace.rows[0]
        return InboxStatus(
            *counts,
            oldest=seconds(oldest),
            throughput=processed / max(seconds(lasted).total_seconds(), 1.0),
            average=None if waited is None else seconds(waited),
            processors=processors,
        )

    def numbers_of(self, ids: Sequence[str], sender: str | None) -> Op[list[int]]:
        found = yield self.sql["inbox.events.ids"].bind(event_ids=self.texts(ids), sender=sender)
        return sorted(row[0] for row in found.rows)

    # -- replay and discard -----------------------------------------------------------------------

    def _lock(self, kind: Kind, seqs: Sequence[int], cutoff: datetime | None = None) -> Op[list[int]]:
        """Which of these are of this kind since the cut-off at least, and ours until the transaction ends: nobody
        purges or replays them beside us."""
        lock = self.sql[f"inbox.events.lock_{kind}"]
        found = yield lock.bind(seqs=self.numbers(seqs), cutoff=self.to_time(cutoff))
        return [row[0] for row in found.rows]

    def replay(self, kind: Kind, seqs: Sequence[int], cutoff: datetime, now: datetime | None) -> Op[int]:
        return (yield from self.again((yield from self._lock(kind, seqs, cutoff)), now))

    def again(self, seqs: Sequence[int], now: datetime | None) -> Op[int]:
        """Due at once, with fresh attempts: dead letters and processed messages. How many."""
        events = yield from self._read(seqs)
        if events:
            rows = [(event.seq, *place_of(event)) for event in events]
            values = self.table(rows, "seqs", "hashes", "positions", "priorities")
            yield self.sql["inbox.replay.pending"].bind(**values, now=self.to_time(now))
            yield from self._undone(seqs, pending=1)
            yield from self._undead(seqs, pending=1)
        return len(events)

    def _read(self, seqs: Sequence[int]) -> Op[list[Event]]:
        """Without their payloads."""
        if not seqs:
            return []
        found = yield self.sql["inbox.events.read"].bind(seqs=self.numbers(seqs))
        return [Event.stored(self.event_row(row)) for row in found.rows]

    def discard(self, kind: Kind, seqs: Sequence[int], now: datetime | None) -> Op[int]:
        """Messages go for good, and their ids stay known. An ordered key that waits for one of them goes on."""
        ours = yield from self._lock(kind, seqs)
        if ours and kind == "open":
            yield from self.give_up(dict.fromkeys(ours, DISCARDED), now)
        yield from self._had_their_turn((yield from self._read(ours)), now)
        return (yield from self._remove_dead(ours))

    def give_up(self, errors: Mapping[int, str | None], now: datetime | None) -> Op[None]:
        """Pending messages that are ours become dead letters."""
        rows = sorted(errors.items())
        yield self.sql["inbox.settle.dead"].bind(**self.table(rows, "seqs", "errors"), now=self.to_time(now))
        yield from self.journal_dead(list(errors), pending=-1, dead=1)
        yield self.sql["inbox.settle.forget"].bind(seqs=self.numbers(list(errors)))

    def _had_their_turn(self, events: Sequence[Event], now: datetime | None) -> Op[None]:
        """Ordered keys whose next message is one of these go on behind it."""
        order = (yield from self.plan_of()).order if events else None
        for event in sorted(events, key=lambda event: position_of(event) or 0):
            position = position_of(event)
            if order is None or position is None or event.key is None:
                continue
            expected = yield from self.expected(event.key)
            if position == (order.start if expected is None else expected):
                yield from self.raise_all({event.key: position + 1}, now)
                yield from self.wake([NextNumber(key_hash(event.key), position + 1)], now)

    # -- purge ------------------------------------------------------------------------------------

    def purge_done(self, ttl: timedelta, limit: int, now: datetime | None) -> Op[int]:
        old = yield self.sql["inbox.purge.done"].bind(**self._older(ttl, limit, now))
        seqs = [row[0] for row in old.rows]
        if seqs:
            yield from self.remember(seqs, now)
            yield from self._undone(seqs, pending=0)
            yield self.sql["inbox.purge.message"].bind(seqs=self.numbers(seqs))
        return len(seqs)

    def remember(self, seqs: Sequence[int], now: datetime | None) -> Op[None]:
        """The numbers of what goes and was processed without an order: an order that comes later begins behind them."""
        ordered = "order" in (yield from self.facts())
        if ordered and not any(seq <= self.until for seq in seqs):
            return
        nexts: dict[str, int] = {}
        for seq, name, headers in (yield self.sql["inbox.order.numbered"].bind(seqs=self.numbers(seqs))).rows:
            key, number = numbered_key(name), number_in(headers)
            if key is not None and number is not None and (not ordered or seq <= self.until):
                nexts[key] = max(nexts.get(key, 0), number + 1)
        yield from self.raise_all(nexts, now)

    def purge_dead(self, ttl: timedelta, limit: int, now: datetime | None) -> Op[int]:
        old = yield self.sql["inbox.purge.dead"].bind(**self._older(ttl, limit, now))
        return (yield from self._remove_dead([row[0] for row in old.rows]))

    def _remove_dead(self, seqs: Sequence[int]) -> Op[int]:
        if seqs:
            yield from self._undead(seqs, pending=0)
            yield self.sql["inbox.purge.message"].bind(seqs=self.numbers(seqs))
        return len(seqs)

    def _undone(self, seqs: Sequence[int], *, pending: int) -> Op[None]:
        yield from self.journal_done(seqs, pending=pending)
        yield self.sql["inbox.replay.undone"].bind(seqs=self.numbers(seqs))

    def _undead(self, seqs: Sequence[int], *, pending: int) -> Op[None]:
        yield from self.journal_dead(seqs, pending=pending, dead=-1)
        yield self.sql["inbox.replay.undead"].bind(seqs=self.numbers(seqs))

    def purge_seen(self, ttl: timedelta, limit: int, now: datetime | None) -> Op[int]:
        gone = (yield self.sql["inbox.purge.seen"].bind(**self._older(ttl, limit, now))).count
        if self.former and gone < limit:
            yield self.sql["inbox.purge.former"].bind()
            yield from self.facts()
        return gone

    def purgeable(self, kind: Kind, ttl: timedelta, now: datetime | None) -> Op[int]:
        """How many a purge of processed messages, or of dead letters, would delete."""
        found = yield self.sql[f"inbox.purge.{kind}_count"].bind(ttl=ttl.total_seconds(), now=self.to_time(now))
        return int(found.rows[0][0])

    def _older(self, ttl: timedelta, limit: int, now: datetime | None) -> dict[str, Any]:
        return {"ttl": ttl.total_seconds(), "limit": limit, "now": self.to_time(now)}
