"""X-05: ten days of partitions in seconds: made ahead, dropped behind the slowest live group, never unread."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from relaybox import AsyncMaintainer, AsyncOutbox, Event, Outbox
from relaybox.clock import SystemClock
from relaybox.settings import Settings, TopicSettings
from relaybox.testing.servers import PostgresServer
from relaybox.topic import Topic
from relaybox.topics.start import StartFrom

from .database import Database
from .scale import Scale
from .verdicts import Verdict

DAY = timedelta(days=1)
RETENTION = 7


class Calendar(SystemClock):
    """Real seconds; the day is ours."""

    def __init__(self) -> None:
        self.passed = timedelta(0)
        self._start = self.monotonic()

    def now(self) -> datetime:
        return datetime(2030, 6, 1, 12, tzinfo=UTC) + self.passed + timedelta(seconds=self.monotonic() - self._start)

    def database_now(self) -> datetime | None:
        return self.now()


def run(server: PostgresServer, scale: Scale) -> Verdict:
    """A day is a second's worth of the rate."""
    count = scale.count(10_000)
    verdict = Verdict("X-05", f"ten days of {count:,} events, {RETENTION} days of retention, 3 groups", blocker=False)
    database, clock = Database(server), Calendar()
    kept = timedelta(days=RETENTION)
    topic = Topic.pub_sub("orders", partitions="day", retention=kept, zero_retention=kept, zombie_ttl=timedelta(days=2))
    with Outbox(database.url, clock=clock) as outbox:
        topic_id = outbox.topics.configure(topic).id
        for name in ("fast", "slow", "dying"):
            outbox.topics.group("orders", name, start=StartFrom.earliest()).create()
        database.rows("UPDATE outbox_event_group SET heartbeat_timeout = '100 years'")
        got = {"fast": 0, "slow": 0, "dying": 0}
        ahead, lost, dropped = True, 0, []
        for day in range(1, 13):
            _write(outbox, count)
            got["fast"] += _read(outbox, "fast", count)
            got["slow"] += _read(outbox, "slow", count // 2 if day < 10 else count * 4)
            if day < 9:
                got["dying"] += _read(outbox, "dying", count)
            asyncio.run(_maintain(database.url, clock))
            there = _partitions(database, topic_id)
            ahead &= f"{clock.now() + 7 * DAY:%Y%m%d}" in there
            dropped.append(min(there))
            clock.passed += DAY
        total = count * 12
        first = datetime(2030, 6, 1, tzinfo=UTC)
        verdict.check("made ahead, every day", "7 days", "yes" if ahead else "no", ahead)
        day_8 = dropped[8]
        verdict.check(
            "day 1 goes when all have read it",
            "after day 8",
            f"oldest on day 9: {day_8}",
            day_8 >= f"{first + DAY:%Y%m%d}",
        )
        verdict.check(
            "a group that stands still holds nothing for ever",
            "oldest moves on",
            f"{dropped[8]} → {dropped[-1]}",
            dropped[-1] > dropped[8],
        )
        got["slow"] += _read(outbox, "slow", total)
        for name in ("fast", "slow"):
            lost += total - got[name]
        verdict.check("nothing unread was dropped", "0 lost", f"{lost:,} lost of {2 * total:,}", lost == 0)
    return verdict


def _write(outbox: Outbox, count: int) -> None:
    for start in range(0, count, 5000):
        events = [Event("Placed", {"n": n}, key=str(n % 500), topic="orders") for n in range(min(5000, count - start))]
        with outbox.transaction() as tx:
            outbox.write_all(tx, events)


def _read(outbox: Outbox, group: str, most: int) -> int:
    """In small bites: a shard's turn ends with each, so a slow group is behind by days and not by shards."""
    read, bite = 0, max(10, most // 50)
    with outbox.topics.group("orders", group).consumer() as consumer:
        while read < most:
            batch = consumer.poll(min(bite, most - read))
            if not len(batch):
                break
            read += len(batch)
            consumer.commit(batch)
    return read


def _partitions(database: Database, topic_id: int) -> list[str]:
    found = database.rows(
        "SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid WHERE inhparent = %s::regclass",
        f"outbox_event_log_{topic_id}",
    )
    return [name.rpartition("_p")[2] for (name,) in found if "_p" in name]


async def _maintain(url: str, clock: Calendar) -> None:
    settings = Settings(topics=TopicSettings(lock_timeout="500ms"))
    outbox = AsyncOutbox(url, settings=settings, clock=clock)
    await AsyncMaintainer(outbox, jobs=("ticks", "thin", "detect", "partitions", "cleanup")).once()
