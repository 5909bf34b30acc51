"""Making, listing and dropping inboxes: what goes, what stays, and when it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit import Probe, one, rows
from relaybox import AsyncInbox, Event, Inbox, Retry
from relaybox.errors import AlreadyExists, InUse, NotFound
from relaybox.types import Dropped, InboxInfo, Retention

from .effects import QUICK
from .kit import Twin, arrived, fresh_url, processed, serving
from .their_table import Theirs

RELATIONS = {
    "postgresql": "SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN "
    "('r', 'v', 'S') UNION ALL SELECT proname::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace",
    "mysql": "SELECT table_name FROM information_schema.tables WHERE table_schema = database()",
    "sqlite": "SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite!_%' ESCAPE '!' AND type IN ('table', 'view')",
}


@pytest.fixture
def url(engine: str, tmp_path: Path) -> str:
    return fresh_url(engine, tmp_path)


def relations(url: str) -> set[str]:
    return {row[0] for row in rows(url, RELATIONS[url.partition(":")[0]])}


@pytest.mark.parametrize("kind", ["managed", "adopted"])
@pytest.mark.parametrize("cascade", [False, True])
async def test_what_goes_and_what_stays(url: str, is_async: bool, kind: str, cascade: bool) -> None:
    async with Twin(url, "box", is_async=is_async) as inbox:
        if kind == "managed":
            await inbox.call("migrate")
            await inbox.call("accept", None, arrived(1))
        else:
            Theirs(url).insert("a", 1)
            await inbox.call("adopt", "orders_in")
        assert len(relations(url)) > 10
        kept = None if kind == "managed" and cascade else "box" if kind == "managed" else "orders_in"
        dropped = await inbox.call("drop", cascade=cascade, force=True)
        assert dropped == Dropped(pending=1, dead=0, kept=kept)
        assert relations(url) == ({kept} if kept else set())
        if kept:
            assert one(url, f"SELECT count(*) FROM {kept}") == 1
        assert await inbox.call("drop", cascade=cascade, if_exists=True) is None
        with pytest.raises(NotFound, match="no inbox 'box'"):
            await inbox.call("drop", cascade=cascade)
        if kept != "box":
            await inbox.call("migrate")  # the name is free again
            event = arrived(2)
            assert await inbox.call("accept", None, event)
            assert (await inbox.process(lambda *_: None, settings=QUICK)).done == 1
            assert await inbox.call("events.replay", event.id) == 1
            assert (await inbox.process(lambda *_: None, settings=QUICK)).done == 1
        else:
            with pytest.raises(AlreadyExists, match="'box' is there already and belongs to no inbox"):
                await inbox.call("migrate")


def test_waiting_messages_are_not_lost_by_mistake(url: str) -> None:
    with Inbox(url, "box") as inbox:
        inbox.migrate()
        inbox.accept(None, arrived(1))
        with pytest.raises(InUse, match="0 running processors and 1 waiting messages"):
            inbox.drop(cascade=True)
        assert inbox.status().pending == 1
        processed(inbox, lambda *_: None, settings=QUICK)
        assert inbox.drop(cascade=True) == Dropped(pending=0, dead=0, kept=None)


@pytest.mark.parametrize("kind", ["managed", "adopted"])
def test_nothing_is_dropped_under_a_processor(url: str, kind: str) -> None:
    with Inbox(url, "box") as inbox, Inbox(url, "box") as other:
        if kind == "managed":
            inbox.migrate()
        else:
            Theirs(url)
            inbox.adopt("orders_in")
        with serving(other, lambda *_: None, settings=QUICK), pytest.raises(InUse, match="1 running processors"):
            inbox.drop()
        assert inbox.drop() is not None


def test_an_adopted_table_can_be_adopted_again(url: str) -> None:
    """What waits is in the table itself."""
    theirs = Theirs(url)
    for n in range(3):
        theirs.insert(f"m{n}", n)
    for expected in (1, 2):
        with Inbox(url, "box") as inbox:
            inbox.adopt("orders_in")
            assert (
                processed(inbox, lambda *_: None, settings=QUICK, limit=1 if expected == 1 else None).done == expected
            )
            inbox.drop()
    assert theirs.waiting() == 0


# -- what is agreed on ---------------------------------------------------------------------------------------


def test_what_is_agreed_on_is_what_all_processes_do(url: str) -> None:
    def fail(event: Event, _: Any) -> None:
        raise ValueError

    with Inbox(url, "box") as inbox:
        planned = [migration.name for migration in inbox.migrate(dry_run=True)]
        assert planned[0] == "inbox"
        assert [migration.name for migration in inbox.migrate()] == planned
        assert inbox.migrate() == inbox.migrate(dry_run=True) == []
        inbox.configure(retry=Retry(attempts=2, base="5ms"), retention=Retention(done="1h"))
        Theirs(url)
        with pytest.raises(AlreadyExists, match="an inbox 'box' already; migrate"):
            inbox.adopt("orders_in")
        inbox.accept(None, arrived(1))
    with Inbox(url, "box") as inbox:
        probe = Probe()
        with serving(inbox, fail, settings=QUICK, observers=[probe]) as processor:
            probe.wait(lambda: processor.counts.dead == 1)
        assert inbox.dead.list()[0].attempts == 2


async def test_all_inboxes_of_a_database(url: str) -> None:
    assert Inbox.list(url) == []
    Theirs(url).insert("a", 1)
    with Inbox(url, "one") as a, Inbox(url, "two") as b:
        a.migrate()
        a.accept(None, arrived(1))
        b.adopt("orders_in")
    agreed = (None, None, None, None)
    expected = [InboxInfo("one", None, None, 1, 0, 0, *agreed), InboxInfo("two", None, "orders_in", 1, 0, 0, *agreed)]
    assert Inbox.list(url) == await AsyncInbox.list(url) == expected


def test_a_schema_of_its_own(tmp_path: Path) -> None:
    url = fresh_url("postgres", tmp_path)
    rows(url, 'CREATE SCHEMA "their Schema"')
    rows(
        url,
        'CREATE TABLE "their Schema".t (event_id text PRIMARY KEY, processed_at timestamptz, retry_count int, '
        "error text, received_at timestamptz, event_type text, payload jsonb)",
    )
    rows(url, """INSERT INTO "their Schema".t (event_id, payload) VALUES ('a', '{"n": 1}')""")
    with Inbox(url, "box", schema="mine") as inbox:
        inbox.adopt("t", table_schema="their Schema")
        assert processed(inbox, lambda *_: None, settings=QUICK).done == 1
        assert [(info.name, info.schema) for info in Inbox.list(url)] == [("box", "mine")]
        assert inbox.drop() is not None
