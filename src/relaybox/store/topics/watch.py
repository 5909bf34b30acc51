"""What somebody should look at, and what has been told already."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from ...op import Op
from . import TopicRow
from .logs import LogQueries
from .maintenance import AlertCondition, OpenAlert


class WatchOps(LogQueries):
    def without_groups(self) -> Op[list[tuple[str, bool]]]:
        """Pub/sub topics that no active group reads, and whether they refuse writes because of it."""
        found = yield self.sql["topic.watch.empty"].bind()
        return [(row[0], row[1]) for row in found.rows]

    def standing_still(
        self, patience: timedelta, few: int, now: datetime | None
    ) -> Op[list[tuple[str, str, timedelta, int]]]:
        """(topic, group, how long, about how many events) of groups that do not move although there is work."""
        found = yield self.sql["topic.watch.still"].bind(patience=patience, few=few, now=now)
        return [(row[0], row[1], row[2], row[3]) for row in found.rows]

    def open_marks(
        self, topic: TopicRow, patience: timedelta, limit: int, now: datetime | None
    ) -> Op[tuple[int, timedelta | None]]:
        """How many events are not complete after so long (up to `limit`), and the age of the oldest."""
        query = self.later(topic, "topic.watch.open", log_nobody="'{}'" if topic.topic.tracking == "acks" else "0")
        found = yield query.bind(patience=patience, limit=limit, now=now)
        return found.rows[0][0], found.rows[0][1]

    def ack_rows(self, topic: TopicRow) -> Op[int]:
        found = yield self.log(topic.id)["topic.watch.acks"].bind()
        return int(found.rows[0][0]) if found.rows else 0

    def written(self, topic: TopicRow) -> Op[int]:
        """How many event numbers have been drawn."""
        found = yield self.log(topic.id)["topic.watch.written"].bind()
        return int(found.rows[0][0])

    def horizon(self) -> Op[timedelta]:
        """Age of the oldest open transaction that may have written."""
        found = yield self.sql["topic.watch.horizon"].bind()
        return found.rows[0][0] or timedelta(0)

    def orphans(self, silence: timedelta, now: datetime | None) -> Op[list[tuple[str, str, str, timedelta]]]:
        """(topic, group, state, silent for) of groups that nobody seems to need."""
        found = yield self.sql["topic.watch.orphans"].bind(silence=silence, now=now)
        return [(row[0], row[1], row[2], row[3]) for row in found.rows]

    # -- alerts -----------------------------------------------------------------------------------

    def change_alerts(
        self, looked: Sequence[str], found: Sequence[AlertCondition], now: datetime | None
    ) -> Op[tuple[list[AlertCondition], list[AlertCondition]]]:
        """What has begun and what is over, of the kinds that were looked for. Needs a transaction."""
        columns = self.table(found, "names", "topics", "groups", "texts")
        begun = yield self.sql["topic.watch.raise"].bind(**columns, now=now)
        over = yield self.sql["topic.watch.clear"].bind(looked=list(looked), **columns)
        return [AlertCondition(*row) for row in begun.rows], [AlertCondition(*row) for row in over.rows]

    def alerts(self) -> Op[list[OpenAlert]]:
        found = yield self.sql["topic.watch.alerts"].bind()
        return [
            OpenAlert(name, topic, group, text, self.from_time(since)) for name, topic, group, text, since in found.rows
        ]

    def notify_alert(self) -> Op[None]:
        """Tell listeners on the alert channel that there is something to look at."""
        yield self.sql["topic.watch.notify"].bind()
