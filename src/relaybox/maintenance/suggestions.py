"""What an operator may want to tidy up: nothing here is wrong, and nothing is changed by looking."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from ..op import Op
from ..store.topics.maintenance import Leftover, OpenAlert

if TYPE_CHECKING:
    from ..store.topics.store import TopicStore

SILENT = timedelta(days=7)
COUNTED = 10_000


@dataclass(slots=True)
class Survey:
    alerts: list[OpenAlert] = field(default_factory=list)
    orphans: list[tuple[str, str, str, timedelta]] = field(default_factory=list)  # topic, group, state, silent for
    old_groups: list[Leftover] = field(default_factory=list)
    mismatched: dict[str, int] = field(default_factory=dict)  # topic -> open events that wait for nobody alive


def survey(store: TopicStore, group_retention: timedelta, now: datetime | None) -> Op[Survey]:
    found = Survey()
    found.alerts = yield from store.alerts()
    found.orphans = yield from store.orphans(SILENT, now)
    for topic in (yield from store.topics()):
        found.old_groups += yield from store.old_groups(topic, group_retention, now)
        if topic.topic.tracking in ("bitmap", "acks"):
            count = yield from store.mismatched(topic, COUNTED)
            if count:
                found.mismatched[topic.topic.name] = count
    return found
