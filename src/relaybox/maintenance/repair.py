"""Logs that were carried into another cluster, made readable again: `relaybox doctor --repair`.

Readers go by the transaction numbers in a log. In another cluster they mean nothing, so every event gets the
lowest there is, and every group goes on before its first event that it may not have had. Nothing is lost; some events
come twice. Stop all consumers first. What broke off is finished by the next call.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from ..drivers.spi import Runner
from ..errors import StoreBusy
from ..store.grants.tenants import sees_all

if TYPE_CHECKING:
    from ..store.topics.store import TopicStore

PAGE = 10_000


def repair(
    db: Runner, store: TopicStore, *, progress: Callable[[int], None] = lambda _: None, now: datetime | None = None
) -> int:
    """How many events were stamped; 0 where nothing was wrong."""
    if not db.run(store.incarnation(), tx=False).foreign:
        return 0
    db.run(sees_all(store, "parked"), tx=False)
    if living := db.run(store.living_members(now), tx=False):
        raise StoreBusy(f"{living} consumer(s) of topics are running on these tables; stop them, then repair")
    total = 0
    for topic in db.run(store.topics(), tx=False):
        if topic.topic.tracking == "rows":
            continue
        shards = range(topic.topic.shards)
        for shard in shards:
            db.run(store.place_again(topic, shard))
        for shard in shards:
            after: int | None = 0
            while after is not None:
                stamped, after = db.run(store.stamp(topic, shard, after, PAGE))
                total += stamped
                progress(total)
        db.run(store.go_on(topic, now))
    db.run(store.note_incarnation())
    return total
