"""The doctor in a database with inboxes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from relaybox import Inbox, Outbox
from relaybox.drivers import open_sync
from relaybox.outbox.doctor import Finding, examine
from relaybox.store.outbox import open_store

from .kit import fresh_url
from .their_table import Theirs


def look(url: str) -> dict[str, Finding]:
    with closing(open_sync(url)) as db:
        return {finding.check: finding for finding in examine(db, open_store(db.dialect))}


def test_a_database_without_an_outbox(url: str) -> None:
    with Inbox(url, "orders") as box:
        box.migrate()
    found = look(url)
    assert (found["schema"].level, found["inbox orders"].level) == ("ok", "ok")
    assert "delivery" not in found


def test_the_tables_of_every_inbox_are_looked_at(url: str) -> None:
    with Outbox(url) as outbox, Inbox(url, "orders") as orders, Inbox(url, "bills") as bills:
        for box in (outbox, orders, bills):
            box.migrate()
    with closing(open_sync(url)) as db, db.connection() as connection:
        connection.raw.cursor().execute("DROP TABLE orders_audit")
    found = look(url)
    assert found["inbox orders drift"].level == "critical"
    assert (found["schema"].level, found["inbox bills"].level) == ("ok", "ok")


def test_an_adopted_table(engine: str, tmp_path: Path) -> None:
    theirs = Theirs(fresh_url(engine, tmp_path))
    with Inbox(theirs.url) as box:
        box.adopt(theirs.table)
    found = look(theirs.url)
    assert (found["schema"].level, found["inbox inbox"].level) == ("ok", "ok")
    assert "a duplicate is the same event_id from any sender" in found["inbox inbox identity"].text
