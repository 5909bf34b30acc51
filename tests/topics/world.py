"""A topic with groups, driven op by op: what the tests of marks, backfill, moves and the model stand on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

from kit import rows
from relaybox import Event
from relaybox.clock import SYSTEM_CLOCK
from relaybox.codec import JsonCodec
from relaybox.drivers import Database, open_sync
from relaybox.facts import Observers
from relaybox.op import Op, run
from relaybox.settings import Settings
from relaybox.store.names import Tables
from relaybox.store.topics import (
    ClaimedRanges,
    GroupOptions,
    GroupRow,
    RangeSettlement,
    Start,
    TopicRow,
    open_topic_store,
)
from relaybox.testing.servers import require
from relaybox.topic import Topic, Tracking
from relaybox.topics.context import TopicContext

T = TypeVar("T")
TTL = timedelta(minutes=5)


@cache
def _template() -> str:
    url = require("postgres-wheel", durable=False).create_database()
    db = open_sync(url)
    db.run(open_topic_store("postgres", Tables()).migrate())
    db.close()
    return url


def make_url() -> str:
    return require("postgres-wheel", durable=False).create_database(_template())


class World:
    """In a database of its own, unless it is told which; the topic is made unless it is there."""

    def __init__(
        self, tracking: Tracking, *, url: str | None = None, name: str = "orders", shards: int = 4, **options: Any
    ) -> None:
        self.url = url or make_url()
        self.db: Database = open_sync(self.url, size=8)
        self.store = open_topic_store("postgres", Tables())
        self.name = name
        self.members: dict[int, int] = {}
        if url is None or self.run(self.store.topic(name)) is None:
            options.setdefault("semantics", "pub_sub")
            self.run(self.store.configure(Topic(name=name, tracking=tracking, shards=shards, **options), None))
        self.mark = f"outbox_event_mark_{self.topic.id}"

    @property
    def context(self) -> TopicContext[Any]:
        return TopicContext(
            target=self.url,
            db=self.db,
            store=self.store,
            settings=Settings(),
            clock=SYSTEM_CLOCK,
            observers=Observers([]),
            codec=JsonCodec(),
            wake=lambda: None,
        )

    def run(self, op: Op[T]) -> T:
        return self.db.run(op)

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        return rows(self.url, text)

    @property
    def topic(self) -> TopicRow:
        row = self.run(self.store.topic(self.name))
        assert row is not None
        return row

    def group(self, name: str) -> GroupRow:
        row = self.run(self.store.group(self.name, name))
        assert row is not None
        return row

    # -- writing ----------------------------------------------------------------------------------

    def write(self, count: int = 1, *, copy: bool = False) -> list[int]:
        seqs = self.run(self.store.write(self.topic, _events(count), None, copy=copy))
        assert seqs is not None
        return seqs

    @contextmanager
    def writing(self, count: int = 1) -> Iterator[list[int]]:
        """A transaction that has written and stays open."""
        topic = self.topic
        with self.db.connection() as connection, _transaction(connection):
            seqs = run(self.store.write(topic, _events(count), None), connection)
            assert seqs is not None
            yield seqs

    # -- reading ----------------------------------------------------------------------------------

    def join(self, name: str, kind: str = "latest", **start: Any) -> GroupRow:
        group, _ = self.run(
            self.store.subscribe(self.topic, name, Start(kind, **start), GroupOptions(), None)  # type: ignore[arg-type]
        )
        return group

    def state(self, name: str, state: Any) -> GroupRow:
        return self.run(self.store.set_state(self.group(name), state, "test", None))

    def member(self, group: GroupRow) -> int:
        if group.id not in self.members:
            self.members[group.id] = self.run(self.store.join(group, "test", TTL, None))
        return self.members[group.id]

    def tick(self) -> None:
        self.run(self.store.tick(self.topic, None, wait=True))

    def claim(self, name: str, *, events: int = 100, ranges: int = 100) -> ClaimedRanges:
        group = self.group(name)
        return self.run(
            self.store.claim(self.topic, group, self.member(group), events=events, ranges=ranges, lease=TTL, now=None)
        )

    def settle(self, name: str, taken: ClaimedRanges) -> int:
        done = [(held, [row[0] for row in found]) for held, found in taken.pages]
        settlement = RangeSettlement(finished=done)
        return self.run(self.store.settle(self.topic, self.group(name), settlement, None))

    def drain(self, *names: str, most: int | None = None) -> list[int]:
        """Everything the groups can get (or `most` claims each), handled and settled. The numbers, as delivered."""
        seen: list[int] = []
        for name in names:
            claims = 0
            self.tick()
            while most is None or claims < most:
                taken = self.claim(name)
                claims += 1
                if not taken.pages and not taken.behind:
                    break
                assert self.settle(name, taken) == 0
                seen += [row[0] for _, found in taken.pages for row in found]
        return seen

    # -- completion -------------------------------------------------------------------------------

    def open(self) -> list[int]:
        return [row[0] for row in self.sql(f"SELECT seq FROM {self.mark} WHERE completed_at IS NULL ORDER BY seq")]

    def complete(self) -> list[int]:
        return [row[0] for row in self.sql(f"SELECT seq FROM {self.mark} WHERE completed_at IS NOT NULL ORDER BY 1")]

    def required(self, seq: int) -> set[str]:
        """Names of the groups that an event waits for, or waited for when it was completed."""
        names = {(g.bit, g.id): g.name for g in self.run(self.store.groups(self.name)) if g.state != "cancelled"}
        (value,) = self.sql(f"SELECT required FROM {self.mark} WHERE seq = {seq}")[0]
        if isinstance(value, int):
            return {name for (bit, _), name in names.items() if bit is not None and value >> bit & 1}
        return {name for (_, number), name in names.items() if number in value}

    def release(self) -> int:
        total = 0
        while changed := self.run(self.store.release(self.topic, None, limit=7)):
            total += changed
        return total

    def catch_up(self, *names: str) -> None:
        for name in names:
            after: int | None = 0
            while after is not None:
                after = self.run(self.store.catch_up(self.topic, self.group(name), after, None, limit=50))

    def close(self) -> None:
        self.db.close()
        require("postgres-wheel", durable=False).drop_database(self.url)


def _events(count: int) -> Sequence[Event]:
    return [Event("Happened", {"n": n}, key=f"k{n % 7}") for n in range(count)]


@contextmanager
def _transaction(connection: Any) -> Iterator[None]:
    connection.begin()
    try:
        yield
    except BaseException:
        connection.rollback()
        raise
    connection.commit()
