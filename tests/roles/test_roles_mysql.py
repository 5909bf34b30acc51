"""Least-privilege roles on MariaDB: the same jobs, for accounts of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pymysql
import pytest

from kit import rows, wait_until
from relaybox import ALL, Event, Guard, Inbox, Outbox, Reject, Relay, Retry, Settings, Vault
from relaybox.drivers.mysql_session import options
from relaybox.errors import StoreError, TenantFull, UnsupportedByEngine
from relaybox.store.grants import ROLES, DatabaseRole
from relaybox.testing.servers import require
from relaybox.types import DeliverySettings, OutboxSettings, TenantSettings

from .kit import Estate, in_secret, run

SERVER = ("innodb_flush_log_at_trx_commit", "sync_binlog", "innodb_doublewrite")  # of a server for tests


@pytest.fixture(scope="module")
def estate() -> Iterator[Estate]:
    url = require("mariadb", durable=False).create_database()
    names = {role: f"{role}_{uuid4().hex[:8]}" for role in ROLES if role != "tenant"}
    with Outbox(url) as box, Inbox(url) as inbox, Vault(url) as vault, Guard.sql(url, consumer="billing") as guard:
        box.migrate()
        inbox.migrate()
        vault.migrate()
        guard.migrate()
        for part in (box, inbox, vault):
            with pytest.raises(UnsupportedByEngine, match="row-level security is PostgreSQL's, and this is mysql"):
                part.grants("tenant", to="somebody")
        for role, name in names.items():
            rows(url, f"CREATE USER `{name}`@`%`")
            for part in (box, inbox, vault, guard):
                for line in part.grants(role, to=name):
                    rows(url, line)
    yield Estate(url, names)
    for name in names.values():
        rows(url, f"DROP USER `{name}`@`%`")


def at(estate: Estate, role: DatabaseRole) -> str:
    scheme, rest = estate.url.split("://", 1)
    return f"{scheme}://{estate.names[role]}@{rest.rpartition('@')[2]}"


def test_an_outbox(estate: Estate) -> None:
    seen: list[str] = []

    def handle(event: Event) -> None:
        seen.append(event.id)
        if event.type == "Bad":
            raise Reject("no")

    with Outbox(at(estate, "writer")) as writer:
        with writer.transaction() as tx:
            writer.write(tx, Event("Good", 1, id="w1"))
            writer.write_all(tx, [Event("Good" if n else "Bad", n, id=f"m{n}") for n in range(3)])
        assert writer.resolve(["w1", "nothing"]) == {"w1": True, "nothing": False}
    with Outbox(at(estate, "worker")) as worker, worker.deliver(handle):
        wait_until(lambda: len(seen) >= 4)
    with Outbox(at(estate, "operator")) as operator:
        assert operator.dead.replay(ALL) == 1
        operator.purge(done="0s")
    for role in ("reader", "dashboard"):
        with Outbox(at(estate, role)) as looking:
            assert looking.status().due == 1


def test_an_inbox(estate: Estate) -> None:
    seen: list[str] = []
    with Inbox(at(estate, "receiver")) as receiver:
        assert receiver.accept(None, Event("Paid", 1, id="one"), sender="shop")
        assert not receiver.accept(None, Event("Paid", 1, id="one"), sender="shop")
    with Inbox(at(estate, "worker")) as worker, worker.process(lambda event: seen.append(event.id)):
        wait_until(lambda: seen == ["one"])
    with Inbox(at(estate, "operator")) as operator:
        operator.purge()
    with Inbox(at(estate, "reader")) as reader:
        assert reader.status().pending == 0


def test_a_vault_and_an_inbox_that_stores_in_secret(estate: Estate) -> None:
    in_secret(lambda role: at(estate, role))


def test_quickstart(estate: Estate) -> None:
    """Rolled back and committed; a worker that retries, in order too, and purges by itself."""
    seen: list[str] = []

    def handle(event: Event) -> None:
        seen.append(event.id)
        if seen.count("committed") == 1 and event.id == "committed":
            raise RuntimeError("once")

    settings = Settings(
        delivery=DeliverySettings(retry=Retry(base=timedelta(milliseconds=10))),
        outbox=OutboxSettings(retention=timedelta(microseconds=1), purge_interval=timedelta(milliseconds=50)),
    )
    with Outbox(at(estate, "writer")) as writer:
        with suppress(ZeroDivisionError), writer.transaction() as tx:
            writer.write(tx, Event("Good", 1, id="rolled-back"))
            raise ZeroDivisionError
        with writer.transaction() as tx:
            writer.write(tx, Event("Good", 1, id="committed", key="a"))
            writer.write(tx, Event("Good", 1, id="later", key="a", deliver_at=datetime.now(UTC)))
    stored = "SELECT 1 FROM outbox_event WHERE event_id IN ('committed', 'later')"
    with Outbox(at(estate, "worker"), settings=settings) as worker, worker.deliver(handle, ordered=True) as service:
        wait_until(lambda: seen[-1:] == ["later"])
        service.drain()
        wait_until(lambda: not rows(estate.url, stored))
    assert "rolled-back" not in seen


def test_dead_letters(estate: Estate) -> None:
    with Outbox(at(estate, "writer")) as writer, writer.transaction() as tx:
        writer.write_all(tx, [Event("Bad", 1, id="dead-1"), Event("Bad", 1, id="dead-2")])

    def refuse(event: Event) -> None:
        raise Reject("no")

    with Outbox(at(estate, "worker")) as worker, worker.deliver(refuse) as service:
        service.drain()
        with pytest.raises(StoreError, match="denied"):
            worker.dead.replay(ALL, reason="no right to leave a trace")
    with Outbox(at(estate, "reader")) as reader:
        assert {letter.event.id for letter in reader.dead.list()} >= {"dead-1", "dead-2"}
        with pytest.raises(StoreError, match="denied"):
            reader.dead.replay("dead-1", reason="no")
    for role in ("writer", "receiver", "dashboard"):
        with Outbox(at(estate, role)) as other, pytest.raises(StoreError, match="denied"):
            other.dead.list()
    with Outbox(at(estate, "operator")) as operator:
        assert operator.dead.replay("dead-1", reason="again") == 1
        assert operator.dead.discard("dead-2", reason="never") == 1
        assert [entry.verb for entry in operator.audit(limit=2)] == ["discard", "replay"]
        operator.events.discard("dead-1", reason="never")


@pytest.mark.parametrize("ordered", [False, True])
def test_a_relay(estate: Estate, tmp_path: Path, ordered: bool) -> None:
    with Outbox(at(estate, "writer")) as writer, writer.transaction() as tx:
        writer.write_all(tx, [Event("Happened", n, key="k") for n in range(5)])
    with Relay(at(estate, "relay"), f"jsonl:{tmp_path}/out", to="out", ordered=ordered) as relay:
        wait_until(lambda: relay.counts.done >= 5)
        relay.status()
        assert relay.health().ready
    assert len((tmp_path / "out").read_text().splitlines()) >= 5


def test_letters_of_an_inbox(estate: Estate) -> None:
    def handle(event: Event) -> None:
        if event.type == "Bad":
            raise Reject("no")

    with Inbox(at(estate, "receiver")) as receiver:
        receiver.accept_all(None, [Event("Bad", 2, id="i2"), Event("Paid", 3, id="i3")])
        with pytest.raises(StoreError, match="denied"):
            receiver.process(handle).start()
    with Inbox(at(estate, "worker")) as worker, worker.process(handle) as service:
        service.drain()
        with pytest.raises(StoreError, match="denied"):
            worker.dead.replay(ALL, reason="no right to leave a trace")
    with Inbox(at(estate, "operator")) as operator:
        assert "i2" in [letter.event.id for letter in operator.dead.list()]
        assert operator.dead.replay("i2", reason="again") == 1
        assert operator.events.discard("i2", reason="never") == 1
    for role in ("reader", "dashboard"):
        with Inbox(at(estate, role)) as looking:
            looking.status()
            looking.stats()
            looking.health()
            with pytest.raises(StoreError, match="denied"):
                looking.purge(reason="no")


def test_a_guard(estate: Estate) -> None:
    with Guard.sql(at(estate, "worker"), consumer="billing", mode="setnx") as guard:
        assert [guard.try_mark("m1"), guard.try_mark("m1")] == [True, False]
        guard.purge()
    with (
        Guard.sql(at(estate, "reader"), consumer="billing", mode="setnx") as guard,
        pytest.raises(Exception, match="denied"),
    ):
        guard.try_mark("m2")


def test_what_makes_tables_is_for_their_owner(estate: Estate) -> None:
    for role in estate.names:
        with Outbox(at(estate, role), table="another") as box, pytest.raises(StoreError, match="denied"):
            box.migrate()


@pytest.mark.parametrize("role", ["worker", "relay", "operator", "reader", "dashboard"])
def test_the_doctor_and_the_commands_of_who_looks(estate: Estate, role: DatabaseRole) -> None:
    said = run("--url", at(estate, role), "doctor", "--json")
    found = json.loads(said.stdout)["findings"]
    assert [one for one in found if one["level"] == "critical" and one["check"] not in SERVER] == [], said.stderr
    lists = (["dead", "list"], ["events", "list"]) if role != "dashboard" else ()
    for words in (["status"], ["inbox", "stats"], *lists):
        said = run("--url", at(estate, role), *words)
        assert said.returncode == 0, said.stderr
    assert run("--url", at(estate, role), "config").returncode == 0


def test_a_writer_counts_what_waits_for_a_tenant() -> None:
    """Where the index for it was made, it is granted that column of `pending` and no other."""
    url, name = require("mariadb", durable=False).create_database(), f"capped_{uuid4().hex[:8]}"
    place = Estate(url, {"writer": name})
    capped = Settings(tenants=TenantSettings(max_waiting=2))
    rows(url, f"CREATE USER `{name}`@`%`")
    try:
        with Outbox(url) as box:
            box.migrate()
            assert not [line for line in box.grants("writer", to=name) if "(tenant)" in line]
            box.migrate(fair="tenant")
            for line in box.grants("writer", to=name):
                rows(url, line)
        with Outbox(at(place, "writer"), settings=capped) as writer:
            with writer.transaction() as tx:
                writer.write_all(tx, [Event("Happened", n, tenant="meier") for n in range(2)])
            with pytest.raises(TenantFull, match="meier"), writer.transaction() as tx:
                writer.write(tx, Event("Happened", 2, tenant="meier"))
        with pytest.raises(pymysql.err.OperationalError, match="denied"):
            rows(at(place, "writer"), "SELECT attempts FROM outbox_event_pending")
    finally:
        rows(url, f"DROP USER `{name}`@`%`")


MATRIX: list[tuple[DatabaseRole, str, bool]] = [
    ("writer", "SELECT payload FROM outbox_event", True),
    ("writer", "UPDATE outbox_event_pending SET attempts = 0", True),
    ("writer", "SELECT attempts FROM outbox_event_pending", True),
    ("writer", "DELETE FROM outbox_event", True),
    ("writer", "SELECT payload FROM inbox", True),
    ("worker", "UPDATE outbox_event SET payload = ''", True),
    ("worker", "DELETE FROM outbox_event_audit", True),
    ("worker", "DELETE FROM outbox_event_migration", True),
    ("receiver", "SELECT payload FROM inbox", True),
    ("receiver", "DELETE FROM inbox", True),
    ("reader", "SELECT payload FROM outbox_event", False),
    ("reader", "DELETE FROM outbox_event_dead", True),
    ("dashboard", "SELECT payload FROM outbox_event", True),
    ("dashboard", "SELECT event_id FROM outbox_event", False),
]


@pytest.mark.parametrize(("role", "text", "refused"), MATRIX)
def test_matrix(estate: Estate, role: DatabaseRole, text: str, refused: bool) -> None:
    raw = pymysql.connect(**options(at(estate, role)))
    try:
        with raw.cursor() as cursor:
            cursor.execute(text)
        said = 0
    except pymysql.err.MySQLError as error:
        said = error.args[0]
    finally:
        raw.close()
    assert (said in (1142, 1143)) is refused, said
