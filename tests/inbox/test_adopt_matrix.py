"""Tables of any names and types as inboxes: adopted, processed, replayed, dropped, and never changed."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kit import need_mariadb, rows
from relaybox import Event, Inbox, Reject
from relaybox.errors import AlreadyExists, ConfigError, NotFound
from relaybox.types import Columns

from .effects import QUICK, rows_or_none
from .kit import ENGINES, Twin, fresh_url, processed
from .their_table import Theirs

ODD = (
    "an odd  name",
    "a\"b'c`d",
    "select",
    "ORDER",
    "größe✓",
    "ü" * 31 + "1",  # 63 bytes
    'x"; DROP TABLE effect; --',
    "a :now %s %% ? $1 {seen}",
    "id",
    "seq",
    "Group",
    "event_id",
    "0",
)
HALF_LIFE = timedelta(minutes=5)


@pytest.fixture(scope="module", params=ENGINES)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One database for a whole matrix."""
    return fresh_url(request.param, Path(tmp_path_factory.mktemp("adopt")))


def works_off(theirs: Theirs, name: str, ids: list[Any]) -> None:
    """What a service would do with an inbox in its life; at the end the table is as it was."""
    before = theirs.shape()
    for n, one in enumerate(ids):
        theirs.insert(one, n)
    seen: list[tuple[str, Any]] = []

    def handle(event: Event, _: Any) -> None:
        if event.payload["n"] == 2:
            raise Reject("not this one")
        seen.append((event.id, event.payload["n"]))

    with Inbox(theirs.url, name) as inbox:
        inbox.adopt(theirs.table, theirs.columns)
        assert inbox.status().pending == len(ids)
    texts = [str(one) for one in ids]
    with Inbox(theirs.url, name) as inbox:  # by its name: what was agreed on is kept
        assert processed(inbox, handle, settings=QUICK).done == len(ids) - 1
        assert sorted(seen) == sorted((text, n) for n, text in enumerate(texts) if n != 2)
        assert [(one.event.id, one.error) for one in inbox.dead.list()] == [(texts[2], "Reject: not this one")]
        assert set(theirs.read("retry_count", "error")) == {(1, None), (10, "Reject: not this one")}
        assert inbox.status().dead == 1
        assert inbox.events.replay([*texts[:3], "'; DROP TABLE effect; --", "9" * 40, "%s"]) == 3
        assert theirs.waiting() == 3
        assert processed(inbox, lambda *_: None, settings=QUICK).done == 3
        assert theirs.waiting() == 0
        assert inbox.dead.count() == 0
        assert inbox.drop().kept == theirs.table  # type: ignore[union-attr]
    assert len(theirs.read("id")) == len(ids)
    assert theirs.shape() == before


@pytest.mark.parametrize("number", [0, 6, 7])
def test_names(place: str, number: int) -> None:
    """Every one as a column, some as the table's name too, and all of them in ids."""
    fields = [entry.name for entry in dataclasses.fields(Columns)]
    columns = Columns(**dict(zip(fields, ODD[number:] + ODD[:number], strict=True)))
    rows_or_none(place, "CREATE TABLE IF NOT EXISTS effect (id int)")
    works_off(Theirs(place, ODD[number], columns), f"names_{number}", list(ODD))
    assert rows(place, "SELECT count(*) FROM effect") == [(0,)]


def uuids(count: int) -> list[str]:
    return [str(UUID(int=n + 1)) for n in range(count)]


TYPES = {
    "postgresql": [
        {"id": "uuid"},
        {"id": "bigint"},
        {"id": "integer", "time": "timestamp", "number": "smallint"},
        {"id": "varchar(40)", "payload": "json", "text": "varchar(500)"},
        {"id": 'text COLLATE "C"', "payload": "bytea"},
        {"payload": "text"},
    ],
    "mysql": [
        {"id": "char(36)"},
        {"id": "bigint"},
        {"id": "int unsigned", "time": "timestamp(6) NULL", "number": "smallint"},
        {"id": "varchar(40) CHARACTER SET latin1 COLLATE latin1_bin", "payload": "longtext"},
        {"id": "uuid", "payload": "longblob"},
        {"time": "datetime", "payload": "text CHARACTER SET latin1"},
    ],
    "sqlite": [
        {"id": "uuid", "payload": "json"},
        {"id": "integer"},
        {"id": "int", "time": "real", "payload": "blob"},
        {"id": "varchar(40)", "time": "datetime"},
        {"time": "integer"},
        {"id": "text COLLATE NOCASE", "payload": ""},
    ],
}


@pytest.mark.parametrize("number", range(6))
def test_types(place: str, number: int) -> None:
    types: dict[str, Any] = TYPES[place.partition(":")[0]][number]
    if place.startswith("mysql") and types.get("id") == "uuid":
        need_mariadb("a type of UUIDs")
    whole = types.get("id", "").startswith(("int", "bigint"))
    theirs = Theirs(place, f"typed{number}", **types)
    works_off(theirs, f"types_{number}", list(range(4)) if whole else uuids(4))


@pytest.mark.parametrize("number", range(3))
def test_times_are_utc(place: str, number: int) -> None:
    """Whatever the session's zone."""
    time = {
        "postgresql": ("timestamptz", "timestamp", "timestamp(3)"),
        "mysql": ("datetime(6)", "timestamp(6) NULL", "datetime"),
        "sqlite": ("text", "real", "integer"),
    }[place.partition(":")[0]][number]
    theirs = Theirs(place, f"timed{number}", time=time)
    now = datetime.now(UTC)
    with Inbox(place, f"times_{number}") as inbox:
        inbox.adopt(theirs.table)
        found: list[Event] = []
        inbox.accept(None, Event("A", {"n": 1}))
        processed(inbox, lambda event, _: found.append(event), settings=QUICK)
        assert found[0].created_at is not None
        assert abs(found[0].created_at - now) < HALF_LIFE
        average = inbox.stats()[0].average
        assert average is not None
        assert abs(average) < HALF_LIFE
        [(marked, received)] = theirs.read("processed_at", "received_at")
        assert type(marked) is type(received)


def test_little_is_needed(place: str) -> None:
    columns = Columns(received_at=None, event_type=None, payload=None, sender=None, aggregate_id=None, trace_id=None)
    theirs = Theirs(place, "little", columns)
    theirs.insert("a", 1)
    with Inbox(place, "bare") as inbox:
        adoption = inbox.adopt("little", columns)
        assert set(adoption.columns) == {"id", "processed_at", "retry_count", "error"}
        found: list[Event] = []
        assert processed(inbox, lambda event, _: found.append(event), settings=QUICK).done == 1
        assert (found[0].id, found[0].type, found[0].payload, found[0].headers) == ("a", "message", None, {})


def test_everything_is_read(place: str) -> None:
    columns = Columns(headers="more", sequence="nr", priority="urgent")
    theirs = Theirs(place, "everything", columns)
    theirs.insert(
        "a", 1, sender="'shop'", aggregate_id="'k1'", trace_id="'t1'", headers='\'{"x": "1"}\'', sequence=7, priority=2
    )
    with Inbox(place, "whole") as inbox:
        inbox.adopt("everything", columns)
        found: list[Event] = []
        processed(inbox, lambda event, _: found.append(event), settings=QUICK)
        assert (found[0].type, found[0].key, found[0].payload) == ("OrderPlaced", "k1", {"n": 1})
        assert found[0].headers == {"x": "1", "sequence": "7", "priority": "2", "trace_id": "t1"}


# -- refused --------------------------------------------------------------------------------------


async def test_a_table_that_is_not_there(place: str, is_async: bool) -> None:
    async with Twin(place, "refused", is_async=is_async) as inbox:
        with pytest.raises(NotFound, match="no table 'nowhere'"):
            await inbox.call("adopt", "nowhere")
        rows_or_none(place, "CREATE TABLE IF NOT EXISTS thing (event_id int PRIMARY KEY, retry_count int)")
        with pytest.raises(NotFound, match=r"'processed_at' \(processed_at\), 'error' \(error\)") as missing:
            await inbox.call("adopt", "thing")
        assert "'payload'" in str(missing.value)
        assert "'trace_id'" not in str(missing.value)
        with pytest.raises(NotFound, match=r"'from_whom' .sender."):
            await inbox.call("adopt", "thing", Columns(sender="from_whom"))


@pytest.mark.parametrize(
    ("types", "columns", "words"),
    [
        ({"id": "real"}, {}, "'event_id' .id. is (real|double|REAL)"),
        ({}, {"retry_count": "error"}, "'error' .retry_count. is .*cannot stand for two things"),
        ({"id": "KEYLESS"}, {}, "neither the primary key nor unique"),
        ({"id": "NULLABLE"}, {}, "may be NULL"),
        ({"id": "PARTLY"}, {}, "neither the primary key nor unique"),
    ],
)
def test_what_cannot_serve(place: str, types: dict[str, str], columns: dict[str, str], words: str) -> None:
    name = "unfit" + str(abs(hash((*types.values(), *columns))))
    plain = Theirs(place, f"{name}_model").types
    key = {
        "KEYLESS": f"event_id {plain['id']} NOT NULL",
        "NULLABLE": f"event_id {plain['id']} UNIQUE",
        "PARTLY": f"event_id {plain['id']} NOT NULL",
    }.get(types.get("id", ""), f"event_id {types.get('id', plain['id'])} NOT NULL PRIMARY KEY")
    parts = [
        key,
        f"processed_at {plain['time']}",
        f"received_at {plain['time']}",
        f"retry_count {plain['number']}",
        f"error {plain['text']}",
        "event_type varchar(20)",
        f"payload {plain['payload']}",
        *(["UNIQUE (event_id, event_type)"] if types.get("id") == "PARTLY" else []),
    ]
    rows_or_none(place, f"CREATE TABLE {name} ({', '.join(parts)})")
    with Inbox(place, "refused") as inbox, pytest.raises(ConfigError, match=words):
        inbox.adopt(name, Columns(**columns))


def test_the_name_must_be_free(place: str) -> None:
    Theirs(place, "occupied")
    with Inbox(place, "occupied") as inbox, pytest.raises(AlreadyExists, match="choose another name"):
        inbox.adopt("occupied")
    with Inbox(place, "twice") as inbox:
        inbox.adopt("occupied")
        with pytest.raises(AlreadyExists, match="an inbox 'twice' already"):
            inbox.adopt("occupied")
        inbox.migrate()
        inbox.verify()


def test_a_hint_about_a_missing_index(place: str) -> None:
    theirs = Theirs(place, "hinted")
    with Inbox(place, "hint_a") as inbox:
        assert "no index of 'hinted'" in inbox.adopt("hinted").hints[0]
    theirs.say("CREATE INDEX hinted_waiting ON hinted (processed_at)")
    with Inbox(place, "hint_b") as inbox:
        assert inbox.adopt("hinted").hints == ()
    if not place.startswith("mysql"):
        Theirs(place, "hinted2").say("CREATE INDEX hinted2_w ON hinted2 (received_at) WHERE processed_at IS NULL")
        with Inbox(place, "hint_c") as inbox:
            assert inbox.adopt("hinted2").hints == ()
