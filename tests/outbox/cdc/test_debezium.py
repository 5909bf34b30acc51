"""Debezium itself, in a private Kafka Connect, reads what was written for it, as `relaybox cdc connector` says."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from typing import Any
from urllib.request import Request, urlopen

import psycopg
import pymysql
import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord
from typer.testing import CliRunner

from relaybox import Event, Outbox
from relaybox.cli.app import app
from relaybox.testing.servers import KafkaServer, MariaDBServer, PostgresServer, ServerUnavailable, require
from relaybox.testing.servers.connect import ConnectServer

PASSWORD = "relaybox"


@pytest.fixture(scope="module")
def kafka() -> KafkaServer:
    return require("kafka")


@pytest.fixture(scope="module")
def connect(kafka: KafkaServer) -> Iterator[ConnectServer]:
    environment = {"OUTBOX_DB_PASSWORD": PASSWORD, "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap}
    try:
        server = ConnectServer(kafka, environment=environment)
    except ServerUnavailable as missing:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(f"required under CI=true: {missing}", pytrace=False)
        pytest.skip(str(missing))
    with server:
        yield server


class Captured:
    """The table of an outbox for change data capture, and the connector that reads it."""

    def __init__(self, server: PostgresServer | MariaDBServer, connect: ConnectServer, kafka: KafkaServer) -> None:
        self.connect, self.kafka = connect, kafka
        self.url = server.create_database()
        self.name = self.url.rpartition("/")[2].replace("_", "-")
        self.box = Outbox(self.url, cdc=True)
        self.box.migrate()

    @property
    def slot(self) -> str:
        return self.name.replace("-", "_")

    @property
    def topic(self) -> str:
        return f"{self.name}.Order"

    def document(self, **changes: str) -> dict[str, Any]:
        """Whatever the command prints, and nothing else but what a test has to hurry up."""
        command = ["cdc", "connector", "--name", self.name, "--topic-prefix", self.name]
        url = self.url.replace("mysql://relaybox", "mariadb://capture").replace(
            "postgresql://relaybox", "postgresql://capture"
        )
        printed = CliRunner().invoke(app, command, env={"RELAYBOX_URL": url})
        assert printed.exit_code == 0, printed.output
        document: dict[str, Any] = json.loads(printed.output)
        document["config"] |= {"heartbeat.interval.ms": "500", **changes}
        return document

    async def start(self, **changes: str) -> None:
        await asyncio.to_thread(self.connect.create_connector, self.document(**changes))

    async def stop(self) -> None:
        await asyncio.to_thread(self.connect.delete_connector, self.name)

    def write(self, *events: Event) -> list[Event]:
        with self.box.transaction() as tx:
            self.box.write_all(tx, events)
        return list(events)

    async def read(self, events: Sequence[Event], seconds: float = 40) -> list[ConsumerRecord[bytes, bytes]]:
        """What the topic has, partition by partition, once each of these events is in it."""
        wanted = {event.id for event in events}
        options = {"bootstrap_servers": self.kafka.bootstrap, "auto_offset_reset": "earliest"}
        found: list[Any] = []
        async with asyncio.timeout(seconds), AIOKafkaConsumer(self.topic, **options) as consumer:
            while not wanted <= {header(record, "event_id") for record in found}:
                for batch in (await consumer.getmany(timeout_ms=100)).values():
                    found += batch
        return found


@asynccontextmanager
async def captured(server: Any, connect: ConnectServer, kafka: KafkaServer) -> AsyncIterator[Captured]:
    made = Captured(server, connect, kafka)
    try:
        yield made
    finally:
        made.box.close()
        if connect.states(made.name):
            await made.stop()


@pytest.fixture
async def shop(postgres: PostgresServer, connect: ConnectServer, kafka: KafkaServer) -> AsyncIterator[Captured]:
    """Read by a role that may do what the guide says, and no more."""
    async with captured(postgres, connect, kafka) as made:
        sql(
            made.url,
            "DO $$ BEGIN CREATE ROLE capture LOGIN REPLICATION; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
            "GRANT SELECT ON outbox_event TO capture",
            "CREATE PUBLICATION outbox_event_cdc FOR TABLE outbox_event WITH (publish = 'insert')",
        )
        yield made


def sql(url: str, *statements: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as db:
        cursor = [db.execute(statement) for statement in statements][-1]
        return cursor.fetchall() if cursor.description else []


def header(record: ConsumerRecord[bytes, bytes], name: str) -> str | None:
    value = dict(record.headers)[name]
    return None if value is None else value.decode()


def some_events(count: int, keys: int = 20) -> list[Event]:
    return [
        Event("OrderPlaced", {"n": n, "text": "naïve ☃" * n}, key=f"order-{n % keys}", aggregate_type="Order")
        for n in range(count)
    ]


def check_order(records: Sequence[Any], written: Sequence[Event]) -> None:
    """Per key what was written, in order, bytes and all; the same event may come again, never a gap or an inversion."""
    expected, seen, arrived = defaultdict(list), defaultdict(list), set()
    for event in written:
        expected[event.key].append(event.body)
    for record in records:
        if (identity := header(record, "event_id")) not in arrived:
            arrived.add(identity)
            seen[record.key.decode()].append(record.value)
    assert seen == expected


async def check_messages(made: Captured) -> None:
    """Bytes, key and headers of everything an event can be, from the snapshot as well as from the log."""
    every_byte = bytes(range(256)) * 40
    special = [
        Event("Json", {"naïve": "☃"}, key="a", aggregate_type="Order", tenant="über", headers={"traceparent": "00-1"}),
        Event("Bytes", every_byte, key="a", aggregate_type="Order"),
        Event("Null", None, key="a", aggregate_type="Order"),
        Event("Empty", b"", key="a", aggregate_type="Order"),
        Event("NoKey", payload_json='{ "spaces" : 1.0 }', aggregate_type="Order"),
        Event("Large", random.Random(1).randbytes(500_000), key="b", aggregate_type="Order"),
    ]
    before = made.write(*special)
    await made.start()
    after = made.write(*(Event(e.type, payload_bytes=e.body, key=e.key, aggregate_type="Order") for e in special))
    records = await made.read([*before, *after])
    assert len(records) == 2 * len(special)
    by_id = {header(record, "event_id"): record for record in records}
    for event in [*before, *after]:
        record = by_id[event.id]
        assert record.value == event.body
        assert record.key == (None if event.key is None else event.key.encode())
        names = ("id", "event_type", "aggregate_type", "aggregate_id", "tenant", "content-type", "headers")
        values = (event.id, event.type, "Order", event.key, event.tenant, event.content_type, event.headers_text)
        assert tuple(header(record, name) for name in names) == values
        assert (header(record, "created_at") or "").endswith("Z")
        assert {name for name, _ in record.headers} == {*names, "event_id", "created_at"}


async def test_messages_from_postgresql(shop: Captured) -> None:
    await check_messages(shop)


async def test_messages_from_mariadb(mariadb: MariaDBServer, connect: ConnectServer, kafka: KafkaServer) -> None:
    rights = "SELECT, RELOAD, SHOW DATABASES, REPLICATION SLAVE, REPLICATION CLIENT"  # those of the guide
    admin = pymysql.connect(host="127.0.0.1", port=mariadb.port, user="relaybox", password="relaybox")
    with closing(admin), admin.cursor() as cursor:
        cursor.execute(f"GRANT {rights} ON *.* TO capture@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'")
    async with captured(mariadb, connect, kafka) as made:
        await check_messages(made)


@pytest.mark.parametrize("scheme", ["postgresql", "mariadb"])
def test_every_option_is_one_debezium_knows(connect: ConnectServer, scheme: str) -> None:
    command = ["cdc", "connector", "--name", "n", "--topic-prefix", "p"]
    printed = CliRunner().invoke(app, command, env={"RELAYBOX_URL": f"{scheme}://u@127.0.0.1:1/shop?sslmode=require"})
    config = json.loads(printed.output)["config"]
    path = f"/connector-plugins/{config['connector.class']}/config/validate"
    request = Request(
        f"http://127.0.0.1:{connect.port}{path}",
        json.dumps({"name": "n", **config}).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )
    with urlopen(request, timeout=60) as response:
        answer = json.loads(response.read())
    known = {entry["definition"]["name"] for entry in answer["configs"]}
    beyond = ("value.converter.", "topic.creation.", "schema.history.", "snapshot.select.statement.overrides.")
    assert {name for name in config if not name.startswith(beyond)} - known == set()
    wrong = {entry["value"]["name"] for entry in answer["configs"] if entry["value"]["errors"]}
    assert wrong <= {"database.hostname"}  # there is no such server


async def test_order_is_kept_when_the_worker_is_killed(shop: Captured) -> None:
    await asyncio.to_thread(shop.kafka.create_topic, shop.topic, 3)
    written = shop.write(*some_events(200))
    await shop.start()
    for _ in range(5):
        written += shop.write(*some_events(40))
    await shop.read(written[:300])  # in the midst of it
    await asyncio.to_thread(shop.connect.kill)
    written += shop.write(*some_events(200))
    await asyncio.to_thread(shop.connect.start)
    await shop.start()
    written += shop.write(*some_events(40))
    check_order(await shop.read(written), written)


@pytest.mark.parametrize("how", ["gone", "lost"])
async def test_a_lost_slot_costs_duplicates_and_no_event(shop: Captured, how: str) -> None:
    """Gone: a failover to a standby without it. Lost: the connector was away for more WAL than the server keeps."""
    written = shop.write(*some_events(30))
    await shop.start()
    await shop.read(written)
    await shop.stop()
    sql(shop.url, "DELETE FROM outbox_event WHERE seq <= 10", "VACUUM outbox_event")
    written += shop.write(*some_events(30))  # some of them into the room that was freed, before older ones
    if how == "lost":
        await asyncio.to_thread(lose_slot, shop)
        await asyncio.to_thread(shop.connect.post_connector, shop.document())
        async with asyncio.timeout(30):
            while f"Cannot obtain valid replication slot '{shop.slot}'" not in shop.connect.log_tail(100):
                await asyncio.sleep(0.05)
        sql(shop.url, f"SELECT pg_drop_replication_slot('{shop.slot}')")  # as `relaybox cdc check` says
        await asyncio.to_thread(shop.connect.wait_for, shop.name)
    else:
        sql(shop.url, f"SELECT pg_drop_replication_slot('{shop.slot}')")
        await shop.start()
    written += shop.write(*some_events(5))
    records = await shop.read(written)
    check_order(records[30:], written[10:])  # those that were still there once more, and all in order


def lose_slot(shop: Captured) -> None:
    state = f"SELECT wal_status FROM pg_replication_slots WHERE slot_name = '{shop.slot}'"
    while sql(shop.url, state) != [("lost",)]:
        sql(shop.url, "CREATE TABLE filler AS SELECT repeat('x', 1000) FROM generate_series(1, 30000)")
        sql(shop.url, "DROP TABLE filler", "SELECT pg_switch_wal()", "CHECKPOINT")


async def test_the_log_of_other_tables_is_not_kept(shop: Captured) -> None:
    await shop.start()
    await shop.read(shop.write(*some_events(1)))
    sql(shop.url, "CREATE TABLE other AS SELECT repeat('x', 1000) FROM generate_series(1, 5000)")
    behind = f"""SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) < 1000000
                 FROM pg_replication_slots WHERE slot_name = '{shop.slot}'"""
    async with asyncio.timeout(40):
        while sql(shop.url, behind) != [(True,)]:
            sql(shop.url, "CHECKPOINT")
            await asyncio.sleep(0.2)


async def test_a_purge_goes_unnoticed(shop: Captured) -> None:
    await shop.start()
    written = shop.write(*some_events(10))
    await shop.read(written)
    assert shop.box.purge(done=0) == 10
    records = await shop.read(shop.write(Event("Last", None, key="last", aggregate_type="Order")))
    assert len(records) == 11
