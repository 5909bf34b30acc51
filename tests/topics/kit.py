"""A topic in a database of its own, driven op by op: what the store tests of topics stand on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from kit import make_postgres, rows
from relaybox import Event
from relaybox.drivers import open_sync
from relaybox.op import run
from relaybox.store.names import Tables
from relaybox.store.outbox import open_store
from relaybox.store.topics import (
    ClaimedRanges,
    GroupOptions,
    GroupRow,
    Parking,
    Range,
    RangeSettlement,
    Row,
    Start,
    TopicRow,
    open_topic_store,
)
from relaybox.store.topics.events import LogEvents
from relaybox.topic import Topic

LEASE = timedelta(seconds=30)
TTL = timedelta(seconds=60)
EARLIEST = Start("earliest")
START = datetime(2026, 1, 1, tzinfo=UTC)


def fresh_url() -> str:
    """Of a database with the tables of an outbox and of topics, in which nothing is."""
    return make_postgres()


def happened(n: int, key: str | None = None) -> Event:
    return Event("Happened", {"n": n}, key=key)


def numbers(pages: Iterable[tuple[Range, list[Row]]]) -> list[int]:
    return [row[0] for _, page in pages for row in page]


@dataclass
class World:
    """`now` None: the database's clock decides, as in production."""

    url: str = field(default_factory=fresh_url)
    now: datetime | None = None
    options: dict[str, Any] = field(default_factory=dict)
    topic: TopicRow = field(init=False)

    def __post_init__(self) -> None:
        self.store = open_topic_store("postgres", Tables())
        self.db = open_sync(self.url)
        self.run(open_store("postgres", Tables()).migrate())
        self.run(self.store.migrate())
        self.topic = self.configure("t", **self.options)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exc: object) -> None:
        self.db.close()

    def run(self, op: Any, *, tx: bool = True) -> Any:
        return self.db.run(op, tx=tx)

    def configure(self, name: str, **options: Any) -> TopicRow:
        options = {"semantics": "pub_sub", "tracking": "offset", "shards": 4, **options}
        topic: TopicRow = self.run(self.store.configure(Topic(name=name, **options), self.now))
        return topic

    # -- writing and reading ----------------------------------------------------------------------

    def write(self, *events: Event, on: psycopg.Connection[Any] | None = None) -> list[int]:
        """In a transaction of its own, or in the caller's."""
        op: Any = self.store.write(self.topic, events, self.now)
        if on is None:
            seqs: list[int] = self.run(op)
            return seqs
        from relaybox.drivers.psycopg import PsycopgConnection

        written: list[int] = run(op, PsycopgConnection(on))
        return written

    def write_many(self, count: int, *, keys: int | None = None) -> list[int]:
        return self.write(*(happened(n, f"k{n % keys}" if keys else None) for n in range(count)))

    def group(self, name: str = "g", start: Start = EARLIEST, **options: Any) -> GroupRow:
        group: GroupRow = self.run(self.store.subscribe(self.topic, name, start, GroupOptions(**options), self.now))[0]
        return group

    def kept(self, group: GroupRow) -> LogEvents:
        """What operators ask of it."""
        return LogEvents(self.store, self.topic, group)

    def member(self, group: GroupRow, name: str = "m", ttl: timedelta = TTL) -> int:
        member: int = self.run(self.store.join(group, name, ttl, self.now))
        return member

    def tick(self, **options: Any) -> int | None:
        tick: int | None = self.run(self.store.tick(self.topic, self.now, **options))
        return tick

    def claim(self, group: GroupRow, member: int, **options: Any) -> ClaimedRanges:
        """What there is, without making a tick."""
        options = {"events": 100, "ranges": 64, "lease": LEASE, "now": self.now, **options}
        taken: ClaimedRanges = self.run(self.store.claim(self.topic, group, member, **options))
        return taken

    def take(self, group: GroupRow, member: int, **options: Any) -> ClaimedRanges:
        """As consumers do: at the end of the newest tick they make one and claim again."""
        taken = self.claim(group, member, **options)
        if not taken.pages and not taken.behind and (self.tick(wait=True) or 0) > taken.tick:
            taken = self.claim(group, member, **options)
        return taken

    # -- settling ---------------------------------------------------------------------------------

    def settle(self, group: GroupRow, **settlement: Any) -> int:
        lost: int = self.run(self.store.settle(self.topic, group, RangeSettlement(**settlement), self.now))
        return lost

    def finish(self, group: GroupRow, taken: ClaimedRanges, parkings: Sequence[tuple[int, Parking]] = ()) -> int:
        """Everything of a claim, with what of it is parked."""
        finished = [(held, [row[0] for row in page]) for held, page in taken.pages]
        return self.settle(group, finished=finished, parkings=parkings)

    def drain(self, group: GroupRow, member: int, **options: Any) -> list[int]:
        """Numbers of all that is there, as they were delivered."""
        seen: list[int] = []
        while True:
            taken = self.take(group, member, **options)
            assert taken.alive, "the member's time is over"
            if not taken.pages:
                return seen
            seen += numbers(taken.pages)
            assert self.finish(group, taken) == 0

    # -- looking past relaybox --------------------------------------------------------------------

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        return rows(self.url, text)

    def one(self, text: str) -> Any:
        return self.rows(text)[0][0]

    @property
    def log(self) -> str:
        return f"outbox_event_log_{self.topic.id}"
