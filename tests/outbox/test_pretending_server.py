"""A server that accepts SKIP LOCKED and ignores it, as TiDB does, is refused. The stand-in: a real one, from which a
proxy keeps the words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import StaticPool, create_engine

from kit.databases import make_database, rows
from kit.proxy import Proxy
from relaybox import AsyncOutbox, Inbox, Listeners, Outbox
from relaybox.drivers.script import Beside, Plain
from relaybox.errors import UnsupportedByEngine
from relaybox.locking import made
from relaybox.op import Op, drive
from relaybox.outbox.doctor import examine
from relaybox.store.inbox import InboxTables, open_inbox_store
from relaybox.store.names import Tables
from relaybox.store.outbox import open_store

ENGINES = ("postgres", "mysql")


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    return make_database(request.param, tmp_path)


@pytest.fixture
def pretending(url: str) -> Iterator[str]:
    proxy = Proxy(url, unsaid=b"FOR UPDATE SKIP LOCKED")
    yield proxy.url
    proxy.close()


def test_it_is_refused_where_tables_are_made(pretending: str) -> None:
    with Outbox(pretending) as box, pytest.raises(UnsupportedByEngine, match="accepts SKIP LOCKED and ignores it"):
        box.migrate()
    with Inbox(pretending) as inbox, pytest.raises(UnsupportedByEngine, match="accepts SKIP LOCKED and ignores it"):
        inbox.migrate()


async def test_an_async_outbox_refuses_it_too(pretending: str) -> None:
    async with AsyncOutbox(pretending) as box:
        with pytest.raises(UnsupportedByEngine, match="accepts SKIP LOCKED and ignores it"):
            await box.migrate()


def test_no_process_starts_on_it(url: str, pretending: str) -> None:
    with Inbox(url) as inbox:
        inbox.migrate()
    with Outbox(pretending) as box:
        with pytest.raises(UnsupportedByEngine, match="accepts SKIP LOCKED and ignores it"):
            box.deliver(Listeners()).start()
        assert box.instances() == []
    with Inbox(pretending) as inbox, pytest.raises(UnsupportedByEngine, match="accepts SKIP LOCKED and ignores it"):
        inbox.process(lambda event: None).start()
    assert rows(url, "SELECT id FROM inbox_instance") == []


def test_the_doctor_names_it(pretending: str) -> None:
    with Outbox(pretending) as box:
        (found,) = [finding for finding in examine(box._db, box.store) if finding.check == "locks"]
        version = box._db.run(box.store.server_version(), tx=False)
    assert found.level == "critical"
    assert version in found.text


def test_one_that_means_it_is_taken(url: str) -> None:
    with Outbox(url) as box:
        box.migrate()
        assert [finding for finding in examine(box._db, box.store) if finding.check == "locks"] == []
        with box.deliver(Listeners()):
            pass


def test_an_engine_with_one_connection_cannot_ask_and_does_not_wait(url: str) -> None:
    scheme, rest = url.split("://", 1)
    address = f"{scheme}+{'psycopg' if scheme == 'postgresql' else 'pymysql'}://{rest}"
    for options in ({"poolclass": StaticPool}, {"pool_size": 1, "max_overflow": 0, "pool_timeout": 3600}):
        engine = create_engine(address, **options)
        with Outbox(engine) as box:
            box.migrate()
        engine.dispose()


@pytest.mark.parametrize(
    ("dialect", "version", "refused"),
    [
        ("mysql", "5.7.44-log", "MySQL 5.7.44-log is older than 8.0"),
        ("mysql", "5.5.5-10.5.27-MariaDB-log", "is older than 10.6"),
        ("mysql", "8.0.33", None),
        ("mysql", "9.7.4", None),
        ("mysql", "10.6.0-MariaDB", None),
        ("postgres", "13.22", "PostgreSQL 13.22 is older than 14"),
        ("postgres", "14.18 (Debian 14.18-1)", None),
        ("postgres", "19devel", None),
    ],
)
@pytest.mark.parametrize("product", ["outbox", "inbox"])
def test_an_old_server_is_refused_before_anything_is_made(
    product: str, dialect: str, version: str, refused: str | None
) -> None:
    store = open_store(dialect, Tables()) if product == "outbox" else open_inbox_store(dialect, InboxTables())
    ran = []

    def op() -> Op[str]:
        ran.append("op")
        return "made"
        yield

    def answer(step: Any) -> Any:
        if isinstance(step, Plain):
            step.op.close()
            return version
        if isinstance(step, Beside):
            return None
        return drive(step, lambda statement: None)

    if refused is None:
        assert drive(made(store, op()), answer) == "made"
    else:
        with pytest.raises(UnsupportedByEngine, match=refused):
            drive(made(store, op()), answer)
    assert bool(ran) == (refused is None)
