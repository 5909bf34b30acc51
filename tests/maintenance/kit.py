"""A database with topics, time that the test moves, and a look into the tables past relaybox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from kit import make_postgres, one, rows
from relaybox import AsyncOutbox, Event
from relaybox.clock import Clock, SystemClock
from relaybox.drivers import Database, open_sync
from relaybox.facts import Alert, Fact
from relaybox.maintenance import AsyncMaintainer, Report
from relaybox.op import Op, T
from relaybox.settings import Settings, TopicSettings
from relaybox.store.names import Tables
from relaybox.store.outbox import open_store
from relaybox.store.topics import GroupOptions, GroupRow, Start, TopicRow, open_topic_store
from relaybox.store.topics.store import TopicStore
from relaybox.topic import Topic

NOON = datetime(2031, 3, 1, 12, 0, tzinfo=UTC)


class ShiftedClock(SystemClock):
    """Real seconds, and a database time that the test sets: statements live in it, pauses do not."""

    def __init__(self, at: datetime = NOON) -> None:
        self.at = at

    def now(self) -> datetime:
        return self.at

    def database_now(self) -> datetime | None:
        return self.at

    def pass_time(self, **amount: float) -> None:
        self.at += timedelta(**amount)


async def run_jobs(maintainer: AsyncMaintainer, *jobs: str) -> Report:
    """As once(), which ends its maintainer: these jobs of one that is not started, or all, as often as a test likes."""
    report = maintainer._report = Report(leading=await maintainer._take_term())
    try:
        for name in jobs or maintainer._wanted if report.leading else ():
            await maintainer._run(name)
    finally:
        await maintainer._give_up()
    return report


@dataclass
class World:
    """Topics in a fresh database, driven op by op."""

    url: str = field(default_factory=make_postgres)
    clock: ShiftedClock = field(default_factory=ShiftedClock)
    facts: list[Fact] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.db: Database = open_sync(self.url)
        self.store: TopicStore = open_topic_store("postgres", Tables())
        self.run(open_store("postgres", Tables()).migrate())
        self.run(self.store.migrate())

    def run(self, op: Op[T]) -> T:
        return self.db.run(op)

    @property
    def now(self) -> datetime:
        return self.clock.at

    def topic(self, name: str = "orders", **options: Any) -> TopicRow:
        given = {"semantics": "pub_sub", "tracking": "offset", "shards": 4} | options
        return self.run(self.store.configure(Topic(name=name, **given), self.now))

    def write(self, topic: TopicRow, count: int = 1) -> list[int]:
        fresh = self.run(self.store.topic(topic.topic.name))
        assert fresh is not None
        events = [Event("Placed", {"n": n}, aggregate_type="order", key=str(n % 50)) for n in range(count)]
        seqs = self.run(self.store.write(fresh, events, self.now))
        assert seqs is not None
        return list(seqs)

    def group(self, topic: TopicRow, name: str = "mail", start: str = "earliest") -> GroupRow:
        options = GroupOptions(heartbeat_timeout=timedelta(days=3650))
        group, _ = self.run(self.store.subscribe(topic, name, Start(start), options, self.now))  # type: ignore[arg-type]
        return group

    def state(self, group: GroupRow, state: Any) -> GroupRow:
        return self.run(self.store.set_state(group, state, "test", self.now))

    def tick(self, topic: TopicRow) -> int:
        tick = self.run(self.store.tick(topic, self.now, wait=True))
        assert tick is not None
        return tick

    def read_all(self, topic: TopicRow, group: GroupRow, shards: Sequence[int] | None = None) -> None:
        """As if the group had finished everything up to now."""
        tick = self.tick(topic)
        where = f"group_id = {group.id}" + (f" AND shard = ANY('{{{','.join(map(str, shards))}}}')" if shards else "")
        self.sql(f"UPDATE outbox_event_cursor SET base = {tick}, target = NULL, moved_at = '{self.now}' WHERE {where}")
        if topic.topic.tracking == "bitmap" and shards is None:
            self.sql(
                f"UPDATE outbox_event_mark_{topic.id} SET done = done | (1::bigint << {group.bit}), "
                f"completed_at = CASE WHEN required & ~(done | (1::bigint << {group.bit})) = 0 AND required <> 0 "
                f"THEN '{self.now}'::timestamptz END WHERE completed_at IS NULL"
            )

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        return rows(self.url, text)

    def stored(self, topic: TopicRow) -> int:
        return int(one(self.url, f"SELECT count(*) FROM outbox_event_log_{topic.id}"))

    def marks(self, topic: TopicRow) -> int:
        return int(one(self.url, f"SELECT count(*) FROM outbox_event_mark_{topic.id}"))

    def partitions(self, topic: TopicRow) -> list[str]:
        return [part.name.rpartition("_p")[2] for part in self.run(self.store.partitions(topic))]

    def maintainer(self, *, clock: Clock | None = None, **options: Any) -> AsyncMaintainer:
        upkeep = options.pop("upkeep", None) or TopicSettings(lock_timeout=timedelta(milliseconds=200))
        outbox = AsyncOutbox(self.url, settings=Settings(topics=upkeep), clock=clock or self.clock)
        return AsyncMaintainer(outbox, observers=[self.facts.append], **options)

    async def maintain(self, *jobs: str, **options: Any) -> Report:
        maintainer = self.maintainer(**options)
        try:
            return await run_jobs(maintainer, *jobs)
        finally:
            await maintainer.stop()

    def told(self, name: str) -> list[Alert]:
        return [fact for fact in self.facts if isinstance(fact, Alert) and fact.name == name]

    def close(self) -> None:
        self.db.close()
