"""Groups of one process that stand at the same place of a log share one read, and the events made of it.

A place's content never changes, so a page may be kept. It goes when every group has had it, or when newer ones need the
room. Groups of a topic claim one after the other: the second finds what the first has read.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from ..codec import Codec
from ..engine.ranges.holding import SharedEvents, Taken, weight_of
from ..event import Event
from ..store.topics import Page, Place, Row

LIMIT = 112 * 2**20  # bytes kept: less makes 16 groups that stand at the same place read twice
# Bytes of an event besides its payload: the row, the event made of it, the times and headers that were asked for.
ROW = 850
HEADERS = 300


class SharedPage(Page):
    """Rows, and the events made of them once somebody asked."""

    __slots__ = ("events", "payloads", "readers", "weight")

    def __init__(self, rows: list[Row], readers: int, *, more: bool = False) -> None:
        super().__init__(rows)
        self.more = more
        self.events: SharedEvents | None = None
        self.readers = readers  # who have not had it yet
        headers = [row[8] for row in rows if row[8]]
        self.payloads = sum([len(row[7] or b"") for row in rows])
        self.weight = self.payloads + ROW * len(rows) + HEADERS * len(headers)
        self.weight += 2 * sum(map(len, headers))


class ClaimTurn:
    """Whose turn it is to claim from a topic, and what the last one found out."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.marking = asyncio.Lock()  # groups that mark the same events would wait for each other's rows
        self.readers = 0
        self.goal: int | None = None  # a tick that all go to, so that they meet there
        self.looked_at = 0.0  # when a tick was last asked for, on the clock's monotonic time
        self.tick: int | None = None


class SharedReads:
    """One per process and outbox. Keeps nothing of topics that one group alone reads."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._pages: OrderedDict[tuple[int, Place, int], SharedPage] = OrderedDict()
        self._turns: defaultdict[int, ClaimTurn] = defaultdict(ClaimTurn)
        self._coming = 0
        self.weight = self.payloads = 0
        self.most_payloads = limit  # bytes of them that are kept; `delivery.payload_bytes`
        self.large = False  # there are payloads that a claim has to measure
        self.holders: list[Callable[[], Iterable[Taken]]] = []

    @property
    def held(self) -> int:
        """Bytes of payloads that groups have, shared ones once."""
        events = {id(taken.events): taken.events for holder in self.holders for taken in holder()}
        return sum(weight_of(one) for one in events.values())

    @contextmanager
    def coming(self) -> Iterator[None]:
        """While a group starts: what others read meanwhile is kept for it too. Groups start together."""
        self._coming += 1
        try:
            yield
        finally:
            self._coming -= 1

    def join(self, topic_id: int) -> ClaimTurn:
        turn = self._turns[topic_id]
        turn.readers += 1
        return turn

    def leave(self, topic_id: int) -> None:
        turn = self._turns[topic_id]
        turn.readers -= 1
        if turn.readers < 2:
            for key in [key for key in self._pages if key[0] == topic_id]:
                self._drop(key)
        if not turn.readers:
            del self._turns[topic_id]

    def get(self, topic_id: int, place: Place, limit: int) -> SharedPage | None:
        key = (topic_id, place, limit)
        page = self._pages.get(key)
        if page is None:
            return None
        page.readers -= 1
        if page.readers <= 0:
            self._drop(key)
        return page

    def put(self, topic_id: int, place: Place, limit: int, rows: list[Row], *, more: bool = False) -> list[Row]:
        others = self._turns[topic_id].readers - 1 + self._coming
        if others < 1 or not rows:
            return rows
        key = (topic_id, place, limit)
        self._drop(key)
        page = SharedPage(rows, others, more=more)
        if page.weight > self._limit or page.payloads > self.most_payloads:
            return rows
        self._pages[key] = page
        self.weight += page.weight
        self.payloads += page.payloads
        while self.weight > self._limit or self.payloads > self.most_payloads:
            self._drop(next(iter(self._pages)))
        return page

    def events(self, rows: Sequence[Row], codec: Codec, topic: str) -> SharedEvents:
        """The same list for the same page."""
        if not isinstance(rows, SharedPage):
            return SharedEvents([Event.stored(row, codec, topic) for row in rows])
        if rows.events is None:
            rows.events = SharedEvents([Event.stored(row, codec, topic) for row in rows])
        return rows.events

    def _drop(self, key: tuple[int, Place, int]) -> None:
        page = self._pages.pop(key, None)
        if page is not None:
            self.weight -= page.weight
            self.payloads -= page.payloads
