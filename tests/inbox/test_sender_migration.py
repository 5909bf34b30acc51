"""An inbox of the release before senders were told apart: nothing of it is lost or done twice when it is migrated."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kit import rows
from relaybox import Event, Inbox, Where
from relaybox.drivers import open_sync
from relaybox.ids import key_hash
from relaybox.outbox.doctor import examine
from relaybox.store.inbox import InboxStore, InboxTables, open_inbox_store
from relaybox.store.outbox import open_store
from relaybox.store.schema import statements

from .kit import fresh_url, processed
from .their_table import Theirs

CLOCKS = {
    "postgres": "clock_timestamp()",
    "sqlite": "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS integer) * 1000",
    "mysql": "utc_timestamp(6)",
}
NAMED, UNNAMED, PURGED = "shop", None, "purged"


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The migrations as far as the release before had them."""
    files = InboxStore.migration_files
    monkeypatch.setattr(InboxStore, "migration_files", lambda self: tuple(f for f in files(self) if f[0] < 3))
    return monkeypatch


def write(url: str, *statements: str) -> None:
    with closing(open_sync(url)) as db, db.connection() as connection:
        cursor = connection.raw.cursor()
        for statement in statements:
            cursor.execute(statement)
        connection.raw.commit()


def filled(url: str) -> None:
    """As that release filled it: a message of each kind, of a sender and of nobody, and ids of purged ones."""
    dialect = open_sync(url).dialect
    now, number, statements = CLOCKS[dialect], 0, []
    body = {"postgres": r"'{}'::bytea", "sqlite": "x'7b7d'", "mysql": "'{}'"}[dialect]
    for state in ("pending", "dead", "done"):
        for source in (NAMED, UNNAMED):
            number += 1
            name, text = f"{state}-{source or 'nobody'}", f"'{source}'" if source else "NULL"
            statements.append(
                "INSERT INTO inbox (seq, event_id, event_type, source, aggregate_id, payload, occurred_at, received_at)"
                f" VALUES ({number}, '{name}', 'Placed', {text}, 'k', {body}, {now}, {now})"
            )
            columns, values = {
                "pending": ("due, key_hash, priority, attempts", f"{now}, {key_hash('k')}, 0, 0"),
                "dead": (
                    "key_hash, priority, replayed, attempts, last_error, dead_at",
                    f"{key_hash('k')}, 0, {'false' if dialect != 'sqlite' else 0}, 9, 'no', {now}",
                ),
                "done": ("processed_at, attempts, waited", f"{now}, 1, 0.5"),
            }[state]
            statements.append(f"INSERT INTO inbox_{state} (seq, {columns}) VALUES ({number}, {values})")
            if dialect != "postgres":
                statements.append(remembered(dialect, name))
    if dialect == "postgres":
        statements.append(
            "INSERT INTO inbox (seq, event_id, event_type, occurred_at, received_at)"
            f" VALUES (100, '{PURGED}', 'Placed', {now}, {now})"
        )
        statements.append("SELECT setval('inbox_seq', 100)")
    else:
        statements.append(remembered(dialect, PURGED))
    write(url, *statements)


def remembered(dialect: str, event_id: str) -> str:
    now = CLOCKS[dialect]
    if dialect == "mysql":
        return f"INSERT INTO inbox_seen (event_id, token, seen_at) VALUES ('{event_id}', 1, {now})"
    return f"INSERT INTO inbox_seen (event_id, seen_at) VALUES ('{event_id}', {now})"


@pytest.fixture
def former(engine: str, tmp_path: Path, before: Any) -> str:
    url = fresh_url(engine, tmp_path)
    with Inbox(url) as inbox:
        assert [m.version for m in inbox.migrate()] == [1, 2]
    filled(url)
    before.undo()
    return url


def again(event_id: str) -> Event:
    return Event("Placed", {}, id=event_id, key="k")


def test_nothing_is_lost(former: str) -> None:
    with Inbox(former) as inbox:
        assert [m.version for m in inbox.migrate()] == [3]
        inbox.verify()
        found = {(e.event.id, e.event.sender, e.state) for e in inbox.events.list()}
        assert found == {
            (f"{state}-{sender or 'nobody'}", sender, kind)
            for state, kind in (("pending", "waiting"), ("dead", "dead"), ("done", "done"))
            for sender in ("shop", "")
        }
        assert inbox.status().seen == 7
        seen: list[tuple[str, str]] = []
        processed(inbox, lambda event, _: seen.append((event.id, event.sender)))
        assert sorted(seen) == [("pending-nobody", ""), ("pending-shop", "shop")]
        assert inbox.dead.replay(Where(sender="shop"), reason="now it works") == 1
        processed(inbox, lambda event, _: seen.append((event.id, event.sender)))
        assert seen[2:] == [("dead-shop", "shop")]
    columns = "event_id, sender"
    assert sorted(rows(former, f"SELECT {columns} FROM inbox_letters")) == [("dead-nobody", "")]
    assert len(rows(former, f"SELECT {columns} FROM inbox_status")) == 6
    assert rows(former, f"SELECT {columns} FROM inbox_waiting") == []


@pytest.mark.parametrize("together", [False, True], ids=["alone", "batch"])
def test_what_comes_again_is_known(former: str, together: bool) -> None:
    with Inbox(former) as inbox:
        inbox.migrate()

        def accepted(ids: list[str], sender: str) -> list[bool]:
            events = [again(event_id) for event_id in ids]
            if together:
                return inbox.accept_all(None, events, sender=sender)
            return [inbox.accept(None, event, sender=sender) for event in events]

        for sender, name in (("shop", "shop"), ("", "nobody")):
            ids = [f"{state}-{name}" for state in ("pending", "dead", "done")]
            assert accepted([*ids, PURGED, f"new-{name}"], sender) == [False] * 4 + [True]
            assert accepted([f"new-{name}"], sender) == [False]
        assert accepted(["pending-shop", PURGED], "another") == [True, False]  # nobody knows whose the purged one was


def test_it_is_as_quick_as_others_when_the_last_unknown_id_is_forgotten(former: str) -> None:
    with Inbox(former) as inbox:
        inbox.migrate()
        inbox.accept(None, again("first"), sender="shop")
        assert inbox.store.former
        assert not inbox.store.single
        inbox.purge(done="1h", seen="1h")
        assert inbox.store.former  # it is younger
        inbox.purge(done=0, seen=0)
        assert not inbox.store.former
        assert inbox.store.single == (inbox.store.dialect == "postgres")
        assert inbox.accept(None, again(PURGED), sender="shop") is True


def test_an_inbox_without_a_past_asks_for_none(former: str) -> None:
    with Inbox(former, "fresh") as inbox:
        inbox.migrate()
        inbox.accept(None, again("first"))
        assert not inbox.store.former


def test_its_tables_are_those_of_a_new_one(former: str) -> None:
    with Inbox(former) as inbox, Inbox(former, "fresh") as fresh:
        inbox.migrate()
        fresh.migrate()
        assert inbox._db.run(inbox.store.drift(), tx=False) == []
    with closing(open_sync(former)) as db:
        store = open_inbox_store(db.dialect, InboxTables())
        there = [(row[0], row[1]) for row in db.run(_columns(store), tx=False)]
        found = {finding.check: finding.level for finding in examine(db, open_store(db.dialect))}
    ours = {(table.removeprefix("inbox"), column) for table, column in there if table.startswith("inbox")}
    theirs = {(table.removeprefix("fresh"), column) for table, column in there if table.startswith("fresh")}
    assert ours == theirs
    assert not {column for _, column in ours if column == "source"}
    assert found["inbox inbox"] == "ok"


def _columns(store: InboxStore) -> Any:
    return (yield store.sql["schema.columns"].bind()).rows


@pytest.mark.parametrize("engine", ["mariadb"])
def test_one_that_was_cut_goes_on(tmp_path: Path, engine: str, before: Any) -> None:
    """Where DDL commits by itself: in its course, and when only the record of it is missing."""
    store = open_inbox_store("mysql", InboxTables())
    urls = []
    for _ in range(4):
        urls.append(url := fresh_url(engine, tmp_path))
        with Inbox(url) as inbox:
            inbox.migrate()
        filled(url)
    before.undo()
    todo = statements(store.migrations()[2].sql)
    for cut, url in zip((3, 6, 11, len(todo)), urls, strict=True):
        write(url, *todo[:cut])
        with Inbox(url) as inbox:
            assert [m.version for m in inbox.migrate()] == [3]
            ids = [f"{state}-shop" for state in ("pending", "dead", "done")]
            events = [again(event_id) for event_id in [*ids, PURGED, "new"]]
            assert inbox.accept_all(None, events, sender="shop") == [False] * 4 + [True]
            assert inbox.status().pending == 3


def test_a_table_that_was_adopted(engine: str, tmp_path: Path, before: Any) -> None:
    theirs = Theirs(fresh_url(engine, tmp_path))
    with Inbox(theirs.url) as inbox:
        inbox.adopt(theirs.table)
    [(kept,)] = rows(theirs.url, "SELECT value FROM inbox_meta WHERE name = 'adopted'")
    former = json.loads(kept)
    for part in ("columns", "types"):
        former[part]["source"] = former[part].pop("sender")
    write(theirs.url, f"UPDATE inbox_meta SET value = '{json.dumps(former)}' WHERE name = 'adopted'")
    theirs.insert("m1", 1, sender="'shop'")
    write(theirs.url, remembered(open_sync(theirs.url).dialect, PURGED))
    before.undo()
    with Inbox(theirs.url) as inbox:
        assert [m.version for m in inbox.migrate()] == [3]
        assert inbox._db.run(inbox.store.drift(), tx=False) == []
        assert inbox.accept_all(None, [again("m1"), again("m2"), again(PURGED)], sender="shop") == [False, True, False]
        assert inbox.accept(None, again("m2"), sender="another") is False  # their ids are unique by themselves
        seen: list[tuple[str, str]] = []
        processed(inbox, lambda event, _: seen.append((event.id, event.sender)))
        assert sorted(seen) == [("m1", "shop"), ("m2", "shop")]
        assert {e.event.id for e in inbox.events.list(Where(sender="shop"))} == {"m1", "m2"}
        assert inbox.events.get("m1", sender="another") is None
    assert sorted(rows(theirs.url, "SELECT event_id, sender FROM inbox_status")) == [("m1", "shop"), ("m2", "shop")]
