"""python -m chaos.feed_to_replica --target postgres --changes 20000: from the rows of one database to those of another.

    A: rows ─► feed, refreshed by maintainers ─┬─► relays ─► Kafka, compacted ─► ingests ─► inbox ─► B: table (rows)
                                               ├─► relays ─► Kafka ─► ingest ─► inbox ─► B: table (deltas)
                                               ├─► group ─► B: table (group)
                                               └─► `relaybox replica` ─► B: table (straight)

All at once. A and B have a server each (B may be SQLite). Writers roll back, commit late, delete and insert again,
move rows to other keys, and change so many at once that deltas are claim checks. Snapshots are asked for, and the log
is kept for seconds only. Every process is killed (-9) at random and started again, some are frozen for longer than
their leases, Kafka is killed and both databases are stopped (storm.py). Then feed_to_replica_judge reads the source,
the tables, each change that triggers have recorded of them, and the topic, which a plain consumer reads meanwhile.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from confluent_kafka import Consumer, TopicPartition

from relaybox import Inbox, Outbox, Replica, StartFrom, Topic
from relaybox.errors import RelayboxError
from relaybox.testing.servers import PostgresServer
from relaybox.testing.servers.kafka import KafkaServer
from relaybox.testing.servers.mariadb import MariaDBServer
from relaybox.types import Order

from .feed_to_replica_judge import History, Record, ask, judge, read_changes, read_record, read_truth, record, rows
from .feed_to_replica_services import FEED, QUERY, STOCK, fill, inbox, options, table
from .leases import AS_OPTIONS, TTL
from .storm import Command, Storm, StormOptions, Strike

TARGETS = ("postgres", "mysql", "sqlite")
WAYS = ("rows", "deltas", "group", "straight")
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001", "segment.ms": "1000"}
CLEANS_OFTEN = {"log.cleaner.backoff.ms": "200"}
PARTITIONS = 3
ABSENCE = 15.0
# The log is kept for seconds: who follows straight finds gaps, and copies.
UPKEEP = {
    "topics.tick_interval": "200ms",
    "topics.thin_interval": "2s",
    "topics.cleanup_interval": "2s",
    "topics.term_ttl": f"{TTL:g}s",
    "feeds.interval": "100ms",
    "feeds.back_off": "100ms",
    "feeds.longest_back_off": "1s",
}
PLANTS = {"none": "", "any-version": "inversions", "no-tombstones": "unequal"}  # a bug, and what the judge must find


@dataclass(frozen=True, kw_only=True)
class Options(StormOptions):
    target: str = "postgres"
    ways: str = ",".join(WAYS)
    changes: int = 20_000
    items: int = 200
    writers: int = 2
    maintainers: int = 2
    relays: int = 2  # of each way by Kafka; likewise ingests and processors
    ingests: int = 2
    processors: int = 2
    replicas: int = 2
    snapshots: int = 5
    absences: int = 3  # nobody reads the topic for a while, and the broker compacts it
    plant: str = "none"


class Trial(Storm[Options]):
    # What a frozen relay has begun to send comes when it wakes up, behind what another sent: an old record is the last.
    never_frozen = ("writer", "relay-rows")
    lead = 0.2  # a change is on its way for a second or two

    def __init__(self, options: Options, folder: Path) -> None:
        super().__init__(options, folder, options.changes)
        if options.plant != "none":
            self.patience = 10.0
        self._ways = options.ways.split(",")
        self._known = (0, 0)
        self._server_b: PostgresServer | MariaDBServer | None = None
        self._torn: list[str] = []
        self._looks = 0

    def run(self) -> dict[str, Any]:
        with ExitStack() as stack:
            self._server_a = stack.enter_context(PostgresServer.from_wheel(durable=True))
            self._kafka = stack.enter_context(KafkaServer(settings=CLEANS_OFTEN))
            self._a, self._b = self._server_a.create_database(), self._open_target(stack)
            self._prepare()
            self._recorder = stack.enter_context(Recorder(self._kafka, self._topic("rows")))
            self._play()
            if "rows" in self._ways:
                self._recorder.finish()
            return self._told(self._judged())

    def _open_target(self, stack: ExitStack) -> str:
        if self.options.target == "sqlite":
            return f"sqlite:///{self.folder / 'target.db'}"
        mysql = self.options.target == "mysql"
        server = MariaDBServer.from_system() if mysql else PostgresServer.from_wheel(durable=True)
        self._server_b = stack.enter_context(server)
        return server.create_database()

    def _prepare(self) -> None:
        with Outbox(self._a) as box, psycopg.connect(self._a) as connection:
            box.migrate()
            fill(connection, self.options.items)
            connection.commit()
            box.topics.configure(Topic.pub_sub(FEED.name, tracking="offset", retention="3s"))
            box.feeds.create(FEED)
            for way in self._ways:
                if way != "straight":
                    box.topics.group(FEED.name, way, start=StartFrom.earliest(), ordered=True).create()
                if way in ("rows", "deltas"):
                    with Inbox(self._b, inbox(way)) as receiver:
                        receiver.migrate()
                        if way == "deltas":
                            receiver.configure(order=Order())
                with Replica(self._b, table(way), **options(way, box)) as replica:
                    replica.migrate()
                record(self._b, table(way))
        self._kafka.create_topic(self._topic("rows"), PARTITIONS, COMPACTED)
        self._kafka.create_topic(self._topic("deltas"), PARTITIONS)

    @staticmethod
    def _topic(way: str) -> str:
        return f"goods-{way}"

    # -- who takes part -----------------------------------------------------------------------------

    def _cast(self) -> Iterator[tuple[str, list[str], str]]:
        given, python, runs = self.options, [sys.executable, "-m"], "relaybox runs"
        services = [*python, "chaos.feed_to_replica_services"]
        for n in range(given.writers):
            seed, items = str(given.seed * 100 + n), str(given.items)
            yield f"writer-{n}", [*services, "writer", self._a, str(self.folder), seed, items], "the source is written"
        source = {"url": self._a, **AS_OPTIONS, "replica.poll": "100ms"}
        upkeep = self._config("maintain", {"relaybox": {**source, **UPKEEP}})
        for n in range(given.maintainers):
            yield f"maintainer-{n}", [*python, "relaybox", "--config", upkeep, "maintain"], runs
        for way in self._ways:
            if way in ("rows", "deltas"):
                yield from self._by_kafka(way, python, services)
        if "group" in self._ways:
            yield "group-0", [*services, "group", "group", self._a, self._b], runs
        if "straight" in self._ways:
            config = self._config("replica", {"relaybox": source})
            command = [*python, "relaybox", "--config", config, "replica", FEED.name, "--into", self._b]
            for n in range(given.replicas):
                yield f"replica-{n}", [*command, "--into-table", table("straight")], runs

    def _by_kafka(self, way: str, python: list[str], services: list[str]) -> Iterator[tuple[str, list[str], str]]:
        given, runs, url = self.options, "relaybox runs", f"kafka://{self._kafka.bootstrap}"
        relay = {"to": self._topic(way), "retry.max": "1s", "batch": 50, "rows": way == "rows"}
        tables = {"relaybox": {"url": self._a, **AS_OPTIONS}, "relaybox.relay": relay, "relaybox.sink": {"url": url}}
        config = self._config(f"relay-{way}", tables)
        for n in range(given.relays):
            reads = ["--feed", FEED.name, "--group", way]
            yield f"relay-{way}-{n}", [*python, "relaybox", "--config", config, "relay", *reads], runs
        reading = {"url": url, "topics": self._topic(way), "group": way, "session_timeout": f"{TTL * 3:g}s"}
        config = self._config(f"ingest-{way}", {"relaybox": {"url": self._b}, "relaybox.source": reading})
        for n in range(given.ingests):
            command = [*python, "relaybox", "--config", config, "ingest", "--inbox", inbox(way), "--sender", "shop"]
            yield f"ingest-{way}-{n}", command, runs
        for n in range(given.processors):
            kind = "async" if n % 2 and self.options.target == "postgres" else "sync"
            command = [*services, "processor", way, self._a, self._b, kind, given.plant]
            yield f"processor-{way}-{n}", command, runs

    # -- what happens ---------------------------------------------------------------------------------

    def _outages(self) -> Iterator[tuple[int, Strike]]:
        yield self.options.broker_kills, lambda: self._stop_server("Kafka", self._kafka)
        yield self.options.database_stops, lambda: self._stop_server("database A", self._server_a)
        if self._server_b is not None:
            server = self._server_b
            yield self.options.database_stops, lambda: self._stop_server("database B", server)
        yield self.options.snapshots, self._snapshot
        if "rows" in self._ways:
            yield self.options.absences, self._read_nothing

    def _read_nothing(self) -> None:
        """Meanwhile the cleaner goes over what they have not read: of a row that is gone it leaves the tombstone."""
        for member in self._members:
            if member.role == "ingest-rows":
                member.freeze(ABSENCE)
        self._struck["nobody read the topic"] += 1
        self._over.wait(ABSENCE)

    def _snapshot(self) -> None:
        """Other transactions may be in the way."""
        for _ in range(20):
            with suppress(RelayboxError, psycopg.OperationalError), Outbox(self._a) as box:
                box.feeds.snapshot(None, FEED.name, reason="for a consumer that is new")
                self._struck["snapshot"] += 1
                return
        self._problems.append("no snapshot in 20 attempts")

    def _watch(self) -> None:
        """The stock of all items is the same in each state that the source has had, and so in a table that follows it
        by whole deltas."""
        if ways := [way for way in self._ways if way != "rows"]:
            with suppress(Exception):  # the database may be away
                for way, stock, count in self._of("SELECT '{way}', sum(stock), count(*) FROM {table}", ways):
                    self._looks += 1
                    if count and int(stock) != STOCK * self.options.items:
                        self._torn.append(f"{way}: {stock} in {count} rows")

    def _of(self, text: str, ways: Iterable[str]) -> list[tuple[Any, ...]]:
        """A row of each table."""
        return ask(self._b, " UNION ALL ".join(text.format(way=way, table=table(way)) for way in ways))

    # -- how far it is ----------------------------------------------------------------------------------

    def _progress(self) -> tuple[int, int]:
        """By versions. The last one may have gone again: who has the same rows has it."""
        with suppress(Exception):  # a database may be away
            committed = ask(self._a, "SELECT coalesce(max(version), 0) FROM item_was")[0][0]
            seen = self._of("SELECT coalesce(max(version), 0) FROM {table}_was", self._ways)
            done = min(committed, *(row[0] for row in seen))
            if committed >= self._work and not self._writing and not self._unequal():
                done = committed
            self._known = committed, max(done, self._known[1])
        return self._known

    def _unequal(self) -> list[str]:
        wanted = rows(self._a, f"({QUERY}) q")
        return [way for way in self._ways if rows(self._b, table(way)) != wanted]

    def _waiting(self) -> int:
        """Of the receiver. Then also of the relays: all of the topic was read."""
        return len(self._unequal()) + sum(self._pending().values())

    def _pending(self) -> dict[str, int]:
        ways = [way for way in self._ways if way in ("rows", "deltas")]
        return {
            f"{where} {way}": count
            for way in ways
            for where, count in (
                ("inbox", ask(self._b, f"SELECT count(*) FROM {inbox(way)}_pending")[0][0]),
                ("topic", self._recorder.behind(self._topic(way), way)),
            )
        }

    def _stages(self) -> dict[str, Any]:
        return {"known": self._known, "unequal": self._unequal(), **self._pending()}

    def _judged(self) -> dict[str, Any]:
        names = {way: table(way) for way in self._ways}
        dead = {
            f"inbox {way}": ask(self._b, f"SELECT count(*) FROM {inbox(way)}_dead")[0][0]
            for way in self._ways
            if way in ("rows", "deltas")
        }
        dead["groups"] = ask(self._a, "SELECT count(*) FROM outbox_event_parked WHERE state = 'dead'")[0][0]
        by_rows = "rows" in self._ways
        history = History(
            truth=read_truth(self._a, QUERY),
            tables={way: rows(self._b, name) for way, name in names.items()},
            changes={way: read_changes(self._b, name) for way, name in names.items()},
            topic=self._recorder.records if by_rows else (),
            compacted=self._recorder.compacted() if by_rows else None,
            torn=self._torn,
            died=dead,
        )
        return {"deltas": ask(self._a, "SELECT n FROM outbox_event_feed")[0][0], "looks": self._looks, **judge(history)}


class Recorder:
    """A plain consumer of the compacted topic, from its start on: it mostly reads records before they are compacted."""

    def __init__(self, server: KafkaServer, topic: str) -> None:
        self.records: list[Record] = []
        self._server = server
        self._topic = topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Recorder:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.finish()

    def finish(self) -> None:
        """When all of it is read."""
        self._over.set()
        self._thread.join()

    def compacted(self) -> dict[Any, Any]:
        """What a consumer has that reads the topic only now."""
        late = Recorder(self._server, self._topic)
        late._over.set()
        late._read()
        last = {record.key: record.row for record in late.records}
        return {key: row for key, row in last.items() if row is not None}

    def behind(self, topic: str, group: str) -> int:
        """What a group of the broker has not acknowledged."""
        consumer = self._consumer(group)
        try:
            parts = [TopicPartition(topic, number) for number in range(PARTITIONS)]
            ends = [consumer.get_watermark_offsets(part, timeout=10)[1] for part in parts]
            return sum(end - max(part.offset, 0) for part, end in zip(consumer.committed(parts, 10), ends, strict=True))
        finally:
            consumer.close()

    def _consumer(self, group: str) -> Consumer:
        given = {"group.id": group, "enable.auto.commit": False, "enable.partition.eof": True, "log_level": 0}
        return Consumer({**self._server.client_settings, **given})

    def _read(self) -> None:
        """To the end of each partition, once it is told to come to an end."""
        consumer, ended = self._consumer(f"recorder-{uuid4()}"), set[int]()
        consumer.assign([TopicPartition(self._topic, number, 0) for number in range(PARTITIONS)])
        while not (self._over.is_set() and len(ended) == PARTITIONS):
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is not None:
                if message.error().name() == "_PARTITION_EOF":
                    ended.add(message.partition())
                continue
            ended.discard(message.partition())
            headers = {name: value.decode() for name, value in message.headers() or ()}
            self.records.append(read_record(message.key(), message.value(), headers))
        consumer.close()


COMMAND = Command(
    "feed_to_replica",
    __doc__,
    Trial,
    Options,
    choices={"plant": list(PLANTS)},
    every="target",
    each=TARGETS,
    said=lambda report: f"{report['versions']} versions, {report['deltas']} deltas, {report['records']} records",
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
