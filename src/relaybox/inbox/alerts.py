"""Alerts of an inbox: to the log, to observers, and by NOTIFY where the database has it.

    inbox_dlq_message     a message was given up; many at once: the first few, and one that counts the rest
    inbox_ordering_gap    numbers of a key are missing for longer than `inbox.gap_delay`; told again when they are not

Any number of processors may look: each thing is told once, by one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from ..clock import Clock
from ..drivers.spi import AsyncRunner
from ..engine.loops import Loops
from ..facts import Alert, Observers
from ..op import Op
from ..settings import InboxSettings
from ..store.inbox import InboxStore
from ..store.inbox.alerts import NewLetter
from ..store.inbox.gaps import Gap
from ..store.inbox.order import Order

DEAD = "inbox_dlq_message"
GAP = "inbox_ordering_gap"
PATIENCE = 2.0  # seconds a stop waits for a look that is under way
EARLY = 0.9  # of an interval: nobody waits for two because of coming a moment too soon


def new_alerts(
    store: InboxStore, settings: InboxSettings, order: Order | None, now: datetime | None, *, at_once: bool
) -> Op[list[Alert]]:
    """What is to be told now; by NOTIFY it is, once the transaction commits. `at_once`: though another just looked."""
    if not (yield from store.alert_turn(settings.alert_interval * EARLY, now, at_once=at_once)):
        return []
    name, most = store.tables.event, settings.alerts_per_look
    letters, more = yield from store.new_letters(most)
    alerts = [Alert(DEAD, name, text=_died(letter)) for letter in letters]
    alerts += _rest(DEAD, name, more, "messages died")
    if order is not None:
        gaps, over = yield from store.new_gaps(order, settings.gap_delay, now)
        alerts += [Alert(GAP, name, text=_missing(gap)) for gap in gaps[:most]]
        alerts += _rest(GAP, name, len(gaps) - most, "gaps")
        alerts += [Alert(GAP, name, text=_span(*span), over=True) for span in over[:most]]
        alerts += _rest(GAP, name, len(over) - most, "gaps", over=True)
    if alerts:
        yield from store.notify_alert()
    return alerts


def _rest(kind: str, inbox: str, count: int, what: str, *, over: bool = False) -> Iterator[Alert]:
    if count > 0:
        yield Alert(kind, inbox, text=f"{count} more {what}", over=over)


def _died(letter: NewLetter) -> str:
    """The type of the error only: its text may quote the payload, and is kept with the dead letter."""
    error = (letter.error or "").partition(":")[0]
    return f"message {letter.event_id} ({letter.event_type}) died at attempt {letter.attempts}: {error}"


def _span(key: str, first: int, last: int) -> str:
    return f"key {key!r}, " + (f"number {first}" if first == last else f"numbers {first} to {last}")


def _missing(gap: Gap) -> str:
    dead = "; a dead letter is among them" if gap.letter is not None else ""
    return f"{_span(gap.key, gap.first, gap.last)} missing since {gap.age}{dead}"


def log_all(alerts: list[Alert]) -> list[Alert]:
    for alert in alerts:
        Observers()(alert)
    return alerts


@dataclass(eq=False)
class AlertService:
    _db: AsyncRunner
    _store: InboxStore
    _settings: InboxSettings
    _order: Order | None
    _observers: Observers
    _clock: Clock

    def __post_init__(self) -> None:
        self._looking = asyncio.Lock()
        self._loops = Loops(self._observers, self._clock)

    def start(self) -> None:
        self._loops.repeat("alerts", self._step)

    async def stop(self) -> None:
        """What counts as told is told first, unless the database takes its time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._looking.acquire()
        await self._loops.close()

    async def _step(self) -> None:
        await self._clock.sleep(self._settings.alert_interval.total_seconds())
        async with self._looking:
            looking = new_alerts(self._store, self._settings, self._order, self._clock.database_now(), at_once=False)
            for alert in await self._db.run(looking):
                self._observers(alert)
