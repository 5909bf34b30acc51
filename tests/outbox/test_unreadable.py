"""Events that cannot be read: refused where that is known before, else dead letters, alone; the rest goes on."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kit import Probe, delivering, make_database
from relaybox import Event, Inbox, InvalidEvent, Listeners, Outbox
from relaybox.cli.events import content
from relaybox.codec import MAX_DEPTH
from relaybox.errors import Undecodable
from relaybox.facts import Died

from .poison import unguarded
from .test_ordered import quick

SECRET = "TOP-SECRET"


def nested(levels: int, inside: str = "") -> str:
    return "[" * levels + inside + "]" * levels


def stored(**columns: object) -> Event:
    """As read back from a row that somebody else wrote."""
    row = dict.fromkeys(("aggregate_type", "key", "tenant", "content_type", "headers", "deliver_at"))
    now = datetime.now(UTC)
    row |= {"id": "e-1", "type": "E", "body": b"{}", "at": now, **columns}
    names = ("aggregate_type", "key", "tenant", "content_type", "body", "headers", "at", "deliver_at", "at")
    return Event.stored((1, row["id"], row["type"], *(row[name] for name in names)))


# -- nesting --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        nested(MAX_DEPTH + 1),
        nested(5_000),
        "[" * 5_000,
        '{"a":' * 501 + "1" + "}" * 501,
        '{"a":[' * 251 + "1" + "]}" * 251,
        "[1, " * 501 + "2" + "]" * 501,
    ],
)
def test_what_is_nested_too_deeply_is_not_written(text: str, tmp_path: Path) -> None:
    json_of_others = {"payload_bytes": text.encode(), "content_type": "application/vnd.shop+json; charset=utf-8"}
    with Outbox(make_database("sqlite", tmp_path)) as box, box.transaction() as tx:
        for given in ({"payload_json": text}, json_of_others):
            with pytest.raises(InvalidEvent, match="levels deep, the limit is 500"):
                box.write_all(tx, [Event("Good", None), Event("E", **given)])
        assert one(tx) == 0
        box.write(tx, Event("E", payload_bytes=text.encode()))  # bytes are bytes
        assert one(tx) == 1


def one(tx: Any) -> int:
    return int(tx.connection.execute("SELECT count(*) FROM outbox_event").fetchone()[0])


@pytest.mark.parametrize(
    "value",
    [
        json.loads(nested(MAX_DEPTH)),
        [{"n": [n]} for n in range(5_000)],
        "[" * 5_000,
        {"[" * 600: '\\"' + "{" * 600},
        ["]" * 600, ["[" * 600] * 3],
    ],
)
def test_wide_payloads_and_brackets_in_text_are_no_nesting(value: object, tmp_path: Path) -> None:
    event = Event("E", value)
    with Outbox(make_database("sqlite", tmp_path)) as box, box.transaction() as tx:
        box.write(tx, event)
        assert one(tx) == 1
    assert event.payload == value


@pytest.mark.parametrize("column", ["body", "headers"])
def test_what_others_have_nested_is_undecodable(column: str) -> None:
    text = nested(100_000)
    event = stored(**{column: text.encode() if column == "body" else text})
    with pytest.raises(Undecodable, match="of event e-1"):
        _ = event.payload if column == "body" else event.headers


def test_a_time_that_no_datetime_can_be_is_undecodable() -> None:
    for microseconds in (2**63 - 1, -(2**63)):  # infinity and its opposite
        with pytest.raises(Undecodable, match="the years 1 to 9999"):
            _ = stored(at=microseconds.to_bytes(8, signed=True)).occurred_at


# -- rows ------------------------------------------------------------------------------------------------------

BROKEN = {
    "sqlite": {
        "headers that are not UTF-8": f"headers = CAST(x'FF' || '{SECRET}' AS text)",
        "a type that is not UTF-8": f"event_type = CAST(x'FF' || '{SECRET}' AS text)",
        "a payload that is a number": "payload = 17",
        "a time that is text": f"occurred_at = '{SECRET}'",
        "a time that never was": "occurred_at = 9223372036854775807",
        "nested headers": f"headers = '{nested(100_000)}'",
        "a nested payload": f"payload = '{nested(100_000)}'",
    },
    "mariadb": {
        "a time that never was": "occurred_at = '0000-00-00 00:00:00'",
        "nested headers": f"headers = '{nested(100_000)}'",
        "a nested payload": f"payload = '{nested(100_000)}'",
    },
    "postgres": {
        "a time that never was": "occurred_at = 'infinity'",
        "nested headers": f"headers = '{nested(100_000)}'",
        "a nested payload": f"payload = '{nested(100_000)}'",
    },
}


@pytest.mark.parametrize(("engine", "case"), [(engine, case) for engine, cases in BROKEN.items() for case in cases])
def test_one_row_that_cannot_be_read_is_a_dead_letter_and_its_key_goes_on(
    engine: str, case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url, probe, listeners = make_database(engine, tmp_path), Probe(), Listeners()

    @listeners.on("Step")
    def step(event: Event, delivery: object) -> None:
        assert event.payload
        assert event.headers
        assert event.occurred_at
        probe.deliver(event, delivery)

    unguarded(engine, url)
    with Outbox(url) as writer:
        with writer.transaction() as tx:
            writer.write_all(tx, [Event("Step", n, key="order-7", headers={"n": str(n)}) for n in (1, 2, 3)])
        with writer.transaction() as tx:
            cursor = tx.connection.cursor()
            cursor.execute("SELECT min(seq) FROM outbox_event_pending")
            cursor.execute(f"UPDATE outbox_event SET {BROKEN[engine][case]} WHERE seq = {cursor.fetchone()[0]}")
    settings = quick({"order.on_exhausted": "block"})
    with delivering(Outbox, url, listeners, settings=settings, observers=[probe], ordered=True) as box:
        probe.wait(lambda: len(probe.seen) == 2 and probe.of(Died))
        [letter] = box.dead.list()
    shown = content(letter.event)
    assert SECRET not in json.dumps(shown)
    assert [seen.event.payload for seen in probe.seen] == [2, 3]
    assert (letter.error or "").startswith("Undecodable: ")
    assert SECRET not in (letter.error or "")
    assert SECRET not in caplog.text
    assert "[[[" not in caplog.text


def test_a_caller_who_reads_such_a_row_learns_its_column_only(tmp_path: Path) -> None:
    url = make_database("sqlite", tmp_path)
    with Outbox(url) as box:
        with box.transaction() as tx:
            box.write(tx, Event("E", None))
            tx.connection.execute(f"UPDATE outbox_event SET headers = CAST(x'FF' || '{SECRET}' AS text)")
        waiting = box._db.run(box.store.waiting(10, None))
    assert [Event.stored(row).unreadable for row in waiting] == ["its column 'headers' is not UTF-8 text"]


@pytest.mark.parametrize("column", ["headers", "event_type"])
def test_one_message_that_cannot_be_read_is_a_dead_letter_and_the_others_take_effect(
    column: str, tmp_path: Path
) -> None:
    url, seen = make_database("sqlite", tmp_path), list[int]()
    with Inbox(url, settings=quick()) as inbox:
        inbox.migrate()
        inbox.accept_all(None, [Event("Step", n, headers={"n": str(n)}) for n in (1, 2, 3)])
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.execute(f"UPDATE inbox SET {column} = CAST(x'FF' AS text) WHERE seq = 1")
            connection.commit()
        over = threading.Event()

        def handle(event: Event, connection: object) -> None:
            seen.append(event.payload)
            if len(seen) == 2:
                over.set()

        with inbox.process(handle):
            assert over.wait(20)
        assert sorted(seen) == [2, 3]
        assert inbox.status().dead == 1
