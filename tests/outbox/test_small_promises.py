"""Promises that each cost one line of code and were each broken once."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from kit import delivering, migrated
from relaybox import Event, InvalidEvent, Listeners, Outbox, Retry, Settings
from relaybox.facts import Delivered, Died, Purged
from relaybox.testing import Probe
from relaybox.types import DeliverySettings, OutboxSettings


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'box.db'}"


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


def test_an_event_that_kills_its_process_every_time_becomes_a_dead_letter(url: str) -> None:
    probe, called = Probe(), []
    listeners = Listeners()
    listeners.on("Poison")(called.append)
    settings = Settings(delivery=DeliverySettings(retry=Retry(attempts=3)))
    box = Outbox(url, observers=[probe], settings=settings)
    box.migrate()
    with box.transaction() as tx:
        box.write(tx, Event("Poison", None))
        # What three crashed processes leave behind: claimed three times, never settled.
        tx.connection.execute("UPDATE outbox_event_pending SET attempts = 3, token = NULL, owner = NULL, due = 0")
    with box, box.deliver(listeners):
        (died,) = probe.wait_sync(Died)
    assert "4 times without an outcome" in died.error
    assert called == []


def test_dead_letters_are_purged_also_when_finished_events_are_kept(url: str) -> None:
    probe = Probe()
    settings = Settings(outbox=OutboxSettings(dead_retention="1us", purge_interval="50ms"))
    with delivering(Outbox, url, Listeners(), observers=[probe], settings=settings, migrate=True) as box:
        with box.transaction() as tx:
            box.write(tx, Event("Nobody", None))
        probe.wait_sync(Died)
        probe.wait_sync(Purged)
        assert box.dead.count() == 0


def test_write_all_of_one_event_says_what_it_wants(url: str) -> None:
    with migrated(url) as box, box.transaction() as tx, pytest.raises(InvalidEvent, match="takes a list"):
        box.write_all(tx, Event("A", None))  # type: ignore[arg-type]


def test_a_savepoint_rolled_back_in_plain_sql_takes_its_event_along(url: str) -> None:
    """SQLAlchemy does not know of it, the commit succeeds, and still nothing is delivered that does not exist."""
    probe, seen = Probe(), []
    listeners = Listeners()
    listeners.on("A")(lambda event: seen.append(event.payload))
    engine = sa.create_engine(url.replace("sqlite:", "sqlite+pysqlite:"))
    with delivering(Outbox, url, listeners, observers=[probe], migrate=True) as box:
        with Session(engine) as session:
            session.execute(sa.text("SAVEPOINT half"))
            box.write(session, Event("A", "ghost"))
            session.execute(sa.text("ROLLBACK TO SAVEPOINT half"))
            box.write(session, Event("A", "real"))
            session.commit()
        probe.wait_sync(Delivered)
    engine.dispose()
    assert seen == ["real"]


def test_migrate_on_entering(url: str) -> None:
    with migrated(url) as box:
        box.verify()
    tables = sqlite3.connect(path_of(url)).execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    assert ("outbox_event",) in tables
