"""What an operator asks of an inbox: its dead letters, its health, another run of messages, and less of the past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

from ..errors import ConfigError
from ..event import Event
from ..ids import key_hash
from ..op import Op
from .inbox_claim import InboxClaims, Wake
from .inbox_order import position_of, priority_of
from .sql_store import lane_key

Health = Literal["healthy", "degraded", "critical"]


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
class InboxStatus:
    """One look at an inbox. Counts above 10,000 are estimates where counting would be slow."""

    pending: int
    seen: int
    dead: int = 0


class TypeStats(NamedTuple):
    event_type: str
    pending: int
    processed: int
    dead: int
    average: timedelta | None  # from received to processed


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


class InboxOperate(InboxClaims):
    # -- seeing -----------------------------------------------------------------------------------

    def counts(self) -> Op[InboxStatus]:
        result = yield self.sql["inbox.status"].bind()
        return InboxStatus(*map(int, result.rows[0]))

    def health(self, thresholds: Thresholds, now: datetime | None) -> Op[InboxHealth]:
        counts = yield from self.counts()
        pace = yield self.sql["inbox.status.pace"].bind(now=self.to_time(now))
        return judge(counts, Pace(*pace.rows[0]), thresholds)

    def types(self) -> Op[list[TypeStats]]:
        result = yield self.sql["inbox.status.types"].bind()
        return [
            TypeStats(row[0], row[1], row[2], row[3], None if row[4] is None else timedelta(seconds=float(row[4])))
            for row in result.rows
        ]

    def dead_messages(self, where: MessageFilter, after: int, limit: int) -> Op[list[DeadMessage]]:
        result = yield self.sql["inbox.dead.list"].bind(**self._filter(where), after=after, limit=limit)
        return [
            DeadMessage(Event.stored(self.event_row(row)), row[15], row[16], row[12], row[13], self.from_time(row[14]))
            for row in result.rows
        ]

    def count_dead_messages(self, where: MessageFilter) -> Op[int]:
        result = yield self.sql["inbox.dead.count"].bind(**self._filter(where))
        return int(result.rows[0][0])

    def processed_messages(self, where: MessageFilter, after: int, limit: int) -> Op[list[Event]]:
        result = yield self.sql["inbox.done.list"].bind(**self._filter(where), after=after, limit=limit)
        return [Event.stored(self.event_row(row)) for row in result.rows]

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

    def event_ids(self, ids: Sequence[str]) -> Any:
        raise NotImplementedError

    def replay_messages(self, ids: Sequence[str], now: datetime | None) -> Op[list[str]]:
        """Dead or processed: due again, with fresh attempts. Returns the ids of which that was so."""
        found = yield self.sql["inbox.replay.read"].bind(event_ids=self.event_ids(ids))
        events = [Event.stored(self.event_row(row)) for row in found.rows]
        if not events:
            return []
        rows = [(e.seq, key_hash(lane_key(e)), position_of(e), priority_of(e)) for e in events]
        seqs = self.numbers([row[0] for row in found.rows])
        values = self.table(rows, "seqs", "hashes", "positions", "priorities")
        yield self.sql["inbox.replay.pending"].bind(**values, now=self.to_time(now))
        yield self.sql["inbox.replay.undone"].bind(seqs=seqs)
        yield self.sql["inbox.replay.undead"].bind(seqs=seqs)
        return [event.id for event in events]

    def discard_messages(self, ids: Sequence[str], now: datetime | None) -> Op[list[str]]:
        """Dead letters go with their messages; their ids stay known. An ordered key goes on past them."""
        found = yield self.sql["inbox.replay.read"].bind(event_ids=self.event_ids(ids))
        dead = [row for row in found.rows if row[12]]
        yield from self._remove([row[0] for row in dead], "inbox.replay.undead")
        events = [Event.stored(self.event_row(row)) for row in dead]
        for event in events:
            position = position_of(event)
            if position is not None and event.key is not None:
                yield from self.move_on(event.key, position, now)
                yield from self.wake([Wake(key_hash(event.key), position + 1)], now)
        return [event.id for event in events]

    # -- drain ------------------------------------------------------------------------------------

    def drain_processed(self, before: datetime, limit: int) -> Op[int]:
        old = yield self.sql["inbox.drain.processed"].bind(before=self.to_time(before), limit=limit)
        return (yield from self._remove([row[0] for row in old.rows], "inbox.replay.undone"))

    def drain_dead(self, before: datetime, limit: int) -> Op[int]:
        old = yield self.sql["inbox.drain.dead"].bind(before=self.to_time(before), limit=limit)
        return (yield from self._remove([row[0] for row in old.rows], "inbox.replay.undead"))

    def _remove(self, seqs: Sequence[int], mark: str) -> Op[int]:
        if seqs:
            yield self.sql[mark].bind(seqs=self.numbers(seqs))
            yield self.sql["inbox.drain.message"].bind(seqs=self.numbers(seqs))
        return len(seqs)

    def drain_seen(self, before: datetime, limit: int) -> Op[int]:
        return (yield self.sql["inbox.drain.seen"].bind(before=self.to_time(before), limit=limit)).count
