"""From a backlog in PostgreSQL to Kafka: measured by what the broker appended, and when."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import kafka
from benchmarks.cpu import Sides, postmaster
from benchmarks.driven import DrivenSystem
from benchmarks.ordered import PATIENCE, shards_shared
from benchmarks.process import PeerProcess
from benchmarks.spi import Database, PeerFailed, Sample, Sizes

READY = "relaybox runs relay"


@dataclass
class RelayedSystem(DrivenSystem):
    """A writer whose open transaction holds all events, and processes that relay them as soon as it commits."""

    full_backlog: int = 100_000
    workloads: Sequence[str] = ("relay_kafka_1", "relay_kafka_2")

    def relay_kafka_1(self, database: Database, sizes: Sizes) -> Sample:
        return self._relayed(database, sizes, "relay_kafka_1", 1)

    def relay_kafka_2(self, database: Database, sizes: Sizes) -> Sample:
        return self._relayed(database, sizes, "relay_kafka_2", 2)

    def _relayed(self, database: Database, sizes: Sizes, workload: str, processes: int) -> Sample:
        total = sizes.backlog * self.full_backlog // Sizes().backlog
        topic = kafka.fresh_topic(workload)
        with ExitStack() as stack:
            facts, began, extra = self._run(stack, database, workload, topic, processes, total, sizes.backlog_keys)
        found = kafka.audit(topic)
        if found.distinct < total:
            raise PeerFailed(f"only {found.distinct} of {total} events arrived")
        seconds = found.last - began
        extra = {
            "messages": total,
            "seconds": round(seconds, 3),
            "repeated": found.messages - found.distinct,
            "out_of_order": found.out_of_order,
            **extra,
        }
        return replace(facts, value=total / seconds, extra=extra, settings={**facts.settings, **kafka.FACTS})

    def _run(
        self,
        stack: ExitStack,
        database: Database,
        workload: str,
        topic: str,
        processes: int,
        total: int,
        keys: int,
    ) -> tuple[Sample, float, dict[str, Any]]:
        """Returns when the topic has all: the facts, when work could begin, and what else was seen."""
        options: dict[str, Any] = {"bootstrap": kafka.server().bootstrap, "topic": topic, "keys": keys}
        writer, facts = self._start(stack, database, workload, **options)
        writer.call("hold", total=total, keys=keys)
        relays = self._relays(stack, database, workload, processes, options)
        database.checkpoint()
        used = _sides(database, relays)
        began = writer.call("commit")["at"]
        kafka.wait(topic, total)
        return facts, began, {"cpu_us": used.per_event(total), **self._settled(database)}

    def _relays(
        self, stack: ExitStack, database: Database, workload: str, processes: int, options: dict[str, Any]
    ) -> list[int]:
        """Their process ids, as soon as they are ready."""
        relays = [self._start(stack, database, workload, fresh=False, **options)[0] for _ in range(processes)]
        for relay in relays:
            relay.call("start", mode="drain")
        return [relay.pid for relay in relays]

    def _settled(self, database: Database) -> dict[str, Any]:
        return {}


@dataclass
class RelayboxRelays(RelayedSystem):
    """`relaybox relay` processes with default settings."""

    workloads: Sequence[str] = ("relay_kafka_1", "relay_kafka_2", "relay_twice_10")

    def relay_twice_10(self, database: Database, sizes: Sizes) -> Sample:
        """Ten of them, each with a backlog's worth of events: the share that reached the broker more than once."""
        sample = self._relayed(database, replace(sizes, backlog=10 * sizes.backlog), "relay_twice_10", 10)
        twice = 100 * sample.extra["repeated"] / sample.extra["messages"]
        return replace(sample, value=twice, extra={**sample.extra, "events_per_second": round(sample.value)})

    def _relays(
        self, stack: ExitStack, database: Database, workload: str, processes: int, options: dict[str, Any]
    ) -> list[int]:
        target = ["--url", database.url, "--sink", f"kafka://{options['bootstrap']}", "--to", options["topic"]]
        command = [sys.executable, "-m", "relaybox", "relay", *target]
        logs = [self.logs / f"relay-{workload}-{number + 1}.log" for number in range(processes)]
        relays = [stack.enter_context(_until_ready(command, log)) for log in logs]
        shards_shared(database.url, processes)
        return relays

    def _settled(self, database: Database) -> dict[str, Any]:
        """The broker has it all; when does the database know?"""
        began = time.monotonic()
        left = "SELECT EXISTS (SELECT FROM outbox_event_pending) OR EXISTS (SELECT FROM outbox_event_claim)"
        with psycopg.connect(database.url, autocommit=True) as connection:
            while time.monotonic() - began < PATIENCE:
                if connection.execute(left).fetchone() == (False,):
                    return {"settled_after": round(time.monotonic() - began, 3)}
                time.sleep(0.01)
        raise PeerFailed("the broker has all events, the outbox still waits for some")


@dataclass
class BareProducers(RelayedSystem):
    """The ceiling: producers alone, their messages ready in memory."""

    def _run(
        self,
        stack: ExitStack,
        database: Database,
        workload: str,
        topic: str,
        processes: int,
        total: int,
        keys: int,
    ) -> tuple[Sample, float, dict[str, Any]]:
        options: dict[str, Any] = {"bootstrap": kafka.server().bootstrap, "topic": topic, "processes": processes}
        producers: list[PeerProcess] = []
        for number in range(processes):
            producer, facts = self._start(stack, database, workload, number=number, **options)
            producer.call("hold", total=total, keys=keys)
            producers.append(producer)
        used = _sides(database, [producer.pid for producer in producers])
        for producer in producers:
            producer.send("commit")
        began = min(producer.reply()["at"] for producer in producers)
        return facts, began, {"cpu_us": used.per_event(total)}


def _sides(database: Database, relays: Sequence[int]) -> Sides:
    return Sides({"relay": relays, "postgres": [postmaster(database.url)], "kafka": [kafka.server().pid]})


@contextmanager
def _until_ready(command: Sequence[str], log: Path) -> Iterator[int]:
    """One relay (its process id) from the moment it says that it relays; stopped as an operator would."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        assert process.stdout is not None
        impatience = threading.Timer(PATIENCE, process.kill)
        impatience.start()
        try:
            if READY not in process.stdout.readline():
                raise PeerFailed(f"the relay did not start: {log.read_text(errors='replace')[-300:]}")
            impatience.cancel()
            yield process.pid
        finally:
            impatience.cancel()
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
