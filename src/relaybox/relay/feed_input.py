"""The deltas of a feed, as a relay reads them: the log of its topic as a group, where each waits for the one before it.

Whatever the settings say, what the broker refuses for good, and what failed too often, is parked: later deltas stay
behind it until somebody replays it or lets the key go. A delta that is passed over would leave a gap for good.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..codec import Codec
from ..drivers.spi import AsyncRunner
from ..engine.dispatch import Durations
from ..errors import ConfigError
from ..event import Event
from ..facts import Observers
from ..outbox import AsyncOutbox, Outbox
from ..settings import Settings
from ..store.feeds import open_feed_store
from ..store.feeds.store import FeedStore
from ..store.topics import GroupRow
from ..topics.delivery import GroupHandlers
from ..topics.group import AsyncGroup, Group
from .inputs import GroupInput
from .publish import Publisher
from .ranges import RangePublisher
from .rows import RowPublisher

DELTA: Final = "feed.delta"


class FeedInput(GroupInput):
    """Of one feed. What else is in its topic is passed over."""

    def __init__(
        self,
        group: Group | AsyncGroup,
        box: Outbox | AsyncOutbox,
        settings: Settings,
        observers: Observers,
        codec: Codec,
        feed: str,
        *,
        rows: bool,
        tombstones: bool,
    ) -> None:
        said = group._joining
        if said.ordered is False:
            raise ConfigError(f"the deltas of feed {feed!r} go out in their order; leave ordered=False out")
        policy = said.on_exhausted or settings.order.on_exhausted
        if policy == "skip" or said.on_exhausted == "block":
            raise ConfigError(
                f"a delta of feed {feed!r} that cannot go out is parked, and the next ones wait for it; got "
                f"on_exhausted {policy!r}: leave it out"
            )
        settings = settings.replaced({"order.on_exhausted": "park"})
        super().__init__(group, box, settings, observers, codec, ordered=True)
        self._joining = replace(self._joining, on_exhausted="park")
        self.what = f"feed {feed} as group {group.name}"
        self._feed = feed
        self._feeds: FeedStore = open_feed_store(box.store.dialect, box._tables)
        self._as_rows = rows
        self._tombstones = tombstones

    async def start(self, db: AsyncRunner, publisher: Publisher) -> None:
        found = await db.run(self._feeds.feeds(self._feed), tx=False)
        if not found:
            await db.run(self._feeds.feed(self._feed), tx=False)  # says so
        if found[0].topic != self._joining.topic:
            raise ConfigError(
                f"feed {self._feed!r} writes to topic {found[0].topic!r}, and the relay reads {self._joining.topic!r}"
            )
        await super().start(db, publisher)

    def _wanted(self, event: Event) -> bool:
        return event.type == DELTA and event.key == self._feed

    def _handlers(self, db: AsyncRunner, publisher: Publisher, group: GroupRow, durations: Durations) -> GroupHandlers:
        ranges: RangePublisher | RowPublisher = RangePublisher(publisher, durations, ordered=True, wanted=self._wanted)
        if self._as_rows:
            ranges = RowPublisher(
                publisher,
                durations,
                self._wanted,
                self._feeds,
                db,
                calls=self._settings.delivery.workers,
                tombstones=self._tombstones,
            )
        return GroupHandlers(ranges=ranges, rows=publisher, ignored=lambda: ranges.passed, mean=lambda: durations.mean)
