"""Least-privilege roles on MariaDB: the same jobs, for accounts of the server."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pymysql
import pytest

from kit import rows, wait_until
from relaybox import ALL, Event, Inbox, Outbox, Reject, Vault
from relaybox.drivers.mysql_session import options
from relaybox.errors import UnsupportedByEngine
from relaybox.store.grants import ROLES, DatabaseRole
from relaybox.testing.servers import require

from .kit import Estate, in_secret


@pytest.fixture(scope="module")
def estate() -> Iterator[Estate]:
    url = require("mariadb", durable=False).create_database()
    names = {role: f"{role}_{uuid4().hex[:8]}" for role in ROLES if role != "tenant"}
    with Outbox(url) as box, Inbox(url) as inbox, Vault(url) as vault:
        box.migrate()
        inbox.migrate()
        vault.migrate()
        for part in (box, inbox, vault):
            with pytest.raises(UnsupportedByEngine, match="row-level security is PostgreSQL's, and this is mysql"):
                part.grants("tenant", to="somebody")
        for role, name in names.items():
            rows(url, f"CREATE USER `{name}`@`%`")
            for part in (box, inbox, vault):
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
