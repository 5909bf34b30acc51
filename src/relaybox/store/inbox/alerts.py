"""What people shall be told of an inbox, each once: dead letters that are new, gaps that open and close.

What was told is kept in the database, so neither another processor nor a run from cron tells it again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from ...op import Op
from ..event_rows import legible
from .gaps import Gap, InboxGaps
from .order import Order

LOOK_AT = 1000  # gaps per look; while there are more, none counts as closed


class NewLetter(NamedTuple):
    """A new dead letter."""

    event_id: str
    event_type: str
    attempts: int
    error: str | None


class Span(NamedTuple):
    """Numbers of a key that were missing when somebody was told."""

    key: str
    first: int
    last: int


def compare(told: Sequence[Span], gaps: Sequence[Gap], delay: timedelta) -> tuple[list[Gap], list[Span]]:
    """Gaps to tell of, and spans that are over. A gap that fills up in parts is the same gap: while any of its numbers
    is missing it is neither new nor over."""
    spans, here = defaultdict[str, list[Span]](list), defaultdict[str, list[Gap]](list)
    for span in told:
        spans[span.key].append(span)
    for gap in gaps:
        here[gap.key].append(gap)
    new = [gap for gap in gaps if gap.age >= delay and not any(_touch(span, gap) for span in spans[gap.key])]
    over = [span for span in told if not any(_touch(span, gap) for gap in here[span.key])]
    return new, over


def _touch(span: Span, gap: Gap) -> bool:
    return span.first <= gap.last and gap.first <= span.last


class InboxAlerts(InboxGaps):
    def alert_turn(self, every: timedelta, now: datetime | None, *, at_once: bool) -> Op[bool]:
        """Whether it is ours to look now. Needs a transaction, and lets nobody else look until it ends."""
        turn = yield self.sql["inbox.alert.turn"].bind(
            ttl=every.total_seconds(), at_once=at_once, now=self.to_time(now)
        )
        return at_once or turn.count > 0

    def new_letters(self, limit: int) -> Op[tuple[list[NewLetter], int]]:
        """The first of them, and how many there are beyond. All count as told from now on."""
        found = yield self.sql["inbox.alert.dead"].bind(limit=limit)
        if not found.rows:
            return [], 0
        told = yield self.sql["inbox.alert.told"].bind()
        letters = [NewLetter(legible(i) or "?", legible(t) or "?", n, legible(e)) for i, t, n, e in found.rows]
        return letters, max(told.count - len(letters), 0)

    def new_gaps(self, order: Order, delay: timedelta, now: datetime | None) -> Op[tuple[list[Gap], list[Span]]]:
        """Gaps that have lasted so long, and spans that are over."""
        gaps = yield from self.gaps(order, LOOK_AT, now)
        told = [Span(legible(key) or "", *span) for key, *span in (yield self.sql["inbox.alert.spans"].bind()).rows]
        new, over = compare(told, gaps, delay)
        if len(gaps) >= LOOK_AT:
            over = []
        if over:
            yield self.sql["inbox.alert.close"].bind(**self.table([span[:2] for span in over], "keys", "firsts"))
        if new:
            rows = [(gap.key, gap.first, gap.last) for gap in new]
            values = self.table(rows, "keys", "firsts", "lasts")
            yield self.sql["inbox.alert.open"].bind(**values, now=self.to_time(now))
        return new, over

    def notify_alert(self) -> Op[None]:
        """To listeners on the channel, when our transaction commits: that there is something to look at, and no
        more, as any role of the database may listen. Only PostgreSQL has that."""
        if self.capabilities.listen:
            yield self.sql["inbox.alert.notify"].bind()
