"""python -m chaos.end_to_end --broker kafka --messages 100000: from the transaction of one service to that of another.

    A: rows, events ─► outbox ─► relays ─► broker ─► ingest ─► inbox ─► B: effect, reply ─► outbox ─► relay ─► file

A and B have a PostgreSQL server each. Every process is killed (-9) at random and started again, some are frozen for
longer than their leases, the broker is killed and both databases are stopped at once, again and again (storm.py). Then
end_to_end_judge reads both databases: each effect exactly once, none missing, accounts in order.

`--broker none` leaves broker and ingest out: A's relays write into B's inbox.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from relaybox import Inbox, Outbox
from relaybox.testing.servers import PostgresServer

from .brokers import Broker, broker
from .end_to_end_judge import count, judge, read, waiting
from .end_to_end_services import KINDS, TABLES_A, TABLES_B
from .leases import AS_OPTIONS, TTL
from .storm import Command, Storm, StormOptions, Strike

BROKERS = ("kafka", "rabbitmq", "nats")


@dataclass(frozen=True, kw_only=True)
class Options(StormOptions):
    broker: str = "kafka"
    messages: int = 100_000
    accounts: int = 500
    order: str = "ordered"
    writers: int = 2
    relays: int = 2
    ingests: int = 2
    processors: int = 3


class Trial(Storm[Options]):
    def __init__(self, options: Options, folder: Path) -> None:
        super().__init__(options, folder, options.messages)
        self._broker: Broker | None = None
        self._known = (0, 0)

    def run(self) -> dict[str, Any]:
        with ExitStack() as stack:
            self._server_a, self._server_b = (
                stack.enter_context(PostgresServer.from_wheel(durable=True)) for _ in range(2)
            )
            if self.options.broker != "none":
                self._broker = stack.enter_context(broker(self.options.broker, self.folder))
            self._prepare()
            self._play()
            return self._told(judge(read(self._a, self._b, self._sent), ordered=self.options.order == "ordered"))

    def _prepare(self) -> None:
        self._sent = self.folder / "sent.jsonl"
        self._a, self._b = self._server_a.create_database(), self._server_b.create_database()
        for url, tables in ((self._a, TABLES_A), (self._b, TABLES_B)):
            with Outbox(url) as box, psycopg.connect(url) as connection:
                box.migrate()
                connection.execute(tables)
        with Inbox(self._b) as inbox, psycopg.connect(self._a) as connection:
            inbox.migrate()
            connection.execute("INSERT INTO account SELECT n, 0 FROM generate_series(0, %s) n", [self.options.accounts])

    # -- who takes part -----------------------------------------------------------------------------

    def _cast(self) -> Iterator[tuple[str, list[str], str]]:
        options, python = self.options, [sys.executable, "-m"]
        services, relay = [*python, "chaos.end_to_end_services"], [*python, "relaybox", "relay", "--config"]
        for n in range(options.writers):
            seed, accounts = str(options.seed * 100 + n), str(options.accounts)
            yield f"writer-{n}", [*services, "writer", self._a, str(self.folder), seed, accounts], "service A writes"
        out = self._relay_config("out", self._a, *self._first_way())
        for n in range(options.relays):
            yield f"relay-{n}", [*relay, out], "relaybox runs relay"
        if self._broker is not None:
            ingest = [*python, "relaybox", "ingest", "--config", self._ingest_config()]
            for n in range(options.ingests):
                yield f"ingest-{n}", ingest, "relaybox runs ingest"
        for n in range(options.processors):
            seed, kind = str(options.seed * 100 + 50 + n), KINDS[n % len(KINDS)]
            command = [*services, "processor", self._b, seed, options.order, kind]
            yield f"processor-{n}", command, "service B processes"
        back = self._relay_config("back", self._b, "replies", {"url": f"jsonl://{self._sent}"})
        yield "reply-relay-0", [*relay, back], "relaybox runs relay"

    def _first_way(self) -> tuple[str, dict[str, Any]]:
        """Destination and sink of A's relays."""
        if self._broker is None:
            return "inbox", {"url": f"inbox+{self._b}"}
        self._channel: str = asyncio.run(self._broker.harness.destination())
        return self._channel, {"url": self._broker.url, **self._broker.options}

    def _relay_config(self, name: str, url: str, to: str, sink: dict[str, Any]) -> str:
        relay = {"to": to, "retry.max": "1s", "batch": 100}
        relaybox = {"url": url, **AS_OPTIONS}
        return self._config(name, {"relaybox": relaybox, "relaybox.relay": relay, "relaybox.sink": sink})

    def _ingest_config(self) -> str:
        assert self._broker is not None
        source = {
            "kafka": {"topics": self._channel, "group": "b", "session_timeout": f"{TTL * 3}s"},
            "rabbitmq": {"queue": self._channel.rpartition("/")[2]},
            "nats": {"stream": self._channel, "consumer": "b", "ack_wait": f"{TTL * 3}s"},
        }[self.options.broker]
        tables = {"relaybox": {"url": self._b}, "relaybox.source": {"url": self._broker.url, **source}}
        return self._config("ingest", tables)

    # -- how far it is ------------------------------------------------------------------------------

    def _outages(self) -> Iterator[tuple[int, Strike]]:
        if self._broker is not None:
            harness = self._broker.harness
            yield self.options.broker_kills, lambda: self._kill_broker(harness)
        yield self.options.database_stops, lambda: self._stop_server("database A", self._server_a)
        yield self.options.database_stops, lambda: self._stop_server("database B", self._server_b)

    def _progress(self) -> tuple[int, int]:
        with suppress(psycopg.OperationalError):
            self._known = self._count(self._a, "movement"), self._count(self._b, "ledger")
        return self._known

    def _waiting(self) -> int:
        with psycopg.connect(self._a) as a, psycopg.connect(self._b) as b:
            return waiting(a, b)

    def _stages(self) -> dict[str, int]:
        a = {f"A {table}": self._count(self._a, table) for table in ("movement", "outbox_event_pending")}
        tables = ("inbox", "inbox_pending", "inbox_dead", "ledger", "outbox_event_pending")
        return a | {f"B {table}": self._count(self._b, table) for table in tables}

    def _count(self, url: str, table: str) -> int:
        with psycopg.connect(url, autocommit=True) as connection:
            return count(connection, table)


COMMAND = Command(
    "end_to_end",
    __doc__,
    Trial,
    Options,
    choices={"broker": [*BROKERS, "none"], "order": ["ordered", "plain"]},
    every="broker",
    each=BROKERS,
    said=lambda report: f"{report['effects']} effects",
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
