"""What an operator asks of an inbox: its dead letters, its health, another run of messages, and less of the past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, cast

from ...errors import ConfigError
from ...event import Event
from ...ids import key_hash
from ...op import Op
from ..rows import lane_key
from .meta import InboxMeta
from .order import number_in, position_of, priority_of
from .settle import Wake

Health = Literal["healthy", "degraded", "critical"]
State = Literal["pending", "dead", "processed"]


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages: all that are given must hold."""

    event_type: str | None = None
    source: str | None = None
    key: str | None = None
    tenant: str | None = None
    since: datetime | None = None  # received then or later
    before: datetime | None = None  # received earlier


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A message that was given up, with why and when. The repr shows no payload (Event's does not either)."""

    event: Event
    source: str | None
    position: int | None
    attempts: int
    error: str | None
    dead_at: datetime


@dataclass(frozen=True, slots=True)
class InboxMessage:
    """A message and what became of it so far. The repr shows no payload."""

    event: Event
    source: str | None
    attempts: int
    error: str | None
    position: int | None
    due: datetime | None  # when it may be tried; None: is held back, is being processed, or is over
    over: datetime | None  # when it was processed, or given up
    state: str  # pending, retry, claimed, held; dead; processed


@dataclass(frozen=True, slots=True)
class InboxStatus:
    """One look at an inbox. Counts above 10,000 are estimates where counting would be slow."""

    pending: int
    seen: int
    dead: int = 0


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From where on an inbox is degraded, and from where on critical."""

    pending: tuple[int, int] = (1_000, 100_000)
    dead: tuple[int, int] = (1, 100)
    oldest: tuple[timedelta, timedelta] = (timedelta(minutes=1), timedelta(minutes=15))

    def __post_init__(self) -> None:
        for name in ("pending", "dead", "oldest"):
            degraded, critical = getattr(self, name)
            if not type(degraded)(0) < degraded <= critical:
                raise ConfigError(f"expected {name} to be two rising thresholds above 0, got {degraded} and {critical}")


@dataclass(frozen=True, slots=True)
class InboxHealth:
    """How an inbox does: its backlog, its pace, and why it is not healthy."""

    pending: int
    dead: int
    oldest: timedelta  # since the oldest waiting message was received
    throughput: float  # processed per second, over the last minute at most
    average: timedelta | None  # from received to processed, of those
    processors: int  # alive
    status: Health
    reasons: tuple[str, ...]


class Pace(NamedTuple):
    oldest: float | None
    processed: int
    seconds: float | None
    waited: float | None
    processors: int


def judge(counts: InboxStatus, pace: Pace, thresholds: Thresholds) -> InboxHealth:
    oldest = timedelta(seconds=float(pace.oldest or 0))
    found: list[tuple[int, str]] = []
    for text, value, (degraded, critical) in (
        (f"{counts.pending} messages wait", counts.pending, thresholds.pending),
        (f"{counts.dead} dead letters", counts.dead, thresholds.dead),
        (f"the oldest message waits since {oldest}", oldest, thresholds.oldest),
    ):
        if value >= degraded:  # type: ignore[operator]  # both are numbers, or both durations
            found.append((2 if value >= critical else 1, text))  # type: ignore[operator]
    if counts.pending and not pace.processors:
        found.append((1, "messages wait and no processor is running"))
    worst = max((level for level, _ in found), default=0)
    statuses: tuple[Health, Health, Health] = ("healthy", "degraded", "critical")
    return InboxHealth(
        pending=counts.pending,
        dead=counts.dead,
        oldest=oldest,
        throughput=pace.processed / max(float(pace.seconds or 1), 1.0),
        average=timedelta(seconds=float(pace.waited)) if pace.waited is not None else None,
        processors=pace.processors,
        status=statuses[worst],
        reasons=tuple(text for _, text in sorted(found, reverse=True)),
    )


class InboxOperate(InboxMeta):
    # -- seeing -----------------------------------------------------------------------------------

    def counts(self) -> Op[InboxStatus]:
        result = yield self.sql["inbox.status"].bind()
        return InboxStatus(*map(int, result.rows[0]))

    def health(self, thresholds: Thresholds, now: datetime | None) -> Op[InboxHealth]:
        counts = yield from self.counts()
        pace = yield self.sql["inbox.status.pace"].bind(now=self.to_time(now))
        return judge(counts, Pace(*pace.rows[0]), thresholds)

    def messages(self, state: State, where: MessageFilter, after: int, limit: int) -> Op[list[InboxMessage]]:
        query = {
            "pending": "inbox.message.waiting",
            "dead": "inbox.message.dead",
            "processed": "inbox.message.processed",
        }[state]
        result = yield self.sql[query].bind(**self._filter(where), after=after, limit=limit)
        return [self._message(row) for row in result.rows]

    def message(self, event_id: str) -> Op[InboxMessage | None]:
        result = yield self.sql["inbox.message.find"].bind(event_id=event_id)
        return self._message(result.rows[0]) if result.rows else None

    def _message(self, row: Sequence[Any]) -> InboxMessage:
        source, attempts, error, position, due, over, state = row[12:19]
        due, over = (None if at is None else self.from_time(at) for at in (due, over))
        return InboxMessage(Event.stored(self.event_row(row)), source, attempts, error, position, due, over, state)

    def dead_messages(self, where: MessageFilter, after: int, limit: int) -> Op[list[DeadMessage]]:
        found = yield from self.messages("dead", where, after, limit)
        return [DeadMessage(m.event, m.source, m.position, m.attempts, m.error, cast(datetime, m.over)) for m in found]

    def count_dead_messages(self, where: MessageFilter) -> Op[int]:
        result = yield self.sql["inbox.dead.count"].bind(**self._filter(where))
        return int(result.rows[0][0])

    def _filter(self, where: MessageFilter) -> dict[str, Any]:
        return {
            "event_type": where.event_type,
            "source": where.source,
            "aggregate_id": where.key,
            "tenant_id": where.tenant,
            "since": self.to_time(where.since),
            "before": self.to_time(where.before),
        }

    # -- replay and discard -----------------------------------------------------------------------

    def replay_messages(self, ids: Sequence[str], now: datetime | None) -> Op[list[str]]:
        """Dead or processed: due again, with fresh attempts. Returns the ids of which that was so."""
        found = yield from self._over(ids)
        events = [Event.stored(self.event_row(row)) for row in found]
        if not events:
            return []
        rows = [(e.seq, key_hash(lane_key(e)), position_of(e), priority_of(e)) for e in events]
        values = self.table(rows, "seqs", "hashes", "positions", "priorities")
        yield self.sql["inbox.replay.pending"].bind(**values, now=self.to_time(now))
        seqs = [row[0] for row in found]
        yield from self._undone(seqs, pending=1)
        yield from self._undead(seqs, pending=1)
        return [event.id for event in events]

    def _over(self, ids: Sequence[str]) -> Op[list[Any]]:
        """Which of these are over, and ours until the transaction ends: nobody purges or replays them beside us."""
        asked = self.texts(ids)
        found = yield self.sql["inbox.replay.find"].bind(event_ids=asked)
        if not found.rows:
            return []
        seqs, ours = self.numbers([row[0] for row in found.rows]), set[int]()
        for name in ("inbox.replay.done", "inbox.replay.dead"):
            ours |= {row[0] for row in (yield self.sql[name].bind(seqs=seqs)).rows}
        rows = (yield self.sql["inbox.replay.read"].bind(event_ids=asked)).rows
        return [row for row in rows if row[0] in ours or not (row[12] or row[13])]

    def discard_messages(self, ids: Sequence[str], now: datetime | None) -> Op[list[str]]:
        """Dead letters go with their messages; their ids stay known. An ordered key goes on past them."""
        dead = [row for row in (yield from self._over(ids)) if row[12]]
        yield from self._remove_dead([row[0] for row in dead])
        events = [Event.stored(self.event_row(row)) for row in dead]
        for event in events:
            position = position_of(event)
            if position is not None and event.key is not None:
                yield from self.move_on(event.key, position, now)
                yield from self.wake([Wake(key_hash(event.key), position + 1)], now)
        return [event.id for event in events]

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
        for seq, key, headers in (yield self.sql["inbox.order.numbered"].bind(seqs=self.numbers(seqs))).rows:
            number = number_in(headers)
            if number is not None and (not ordered or seq <= self.until):
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
        return (yield self.sql["inbox.purge.seen"].bind(**self._older(ttl, limit, now))).count

    def _older(self, ttl: timedelta, limit: int, now: datetime | None) -> dict[str, Any]:
        return {"ttl": ttl.total_seconds(), "limit": limit, "now": self.to_time(now)}
