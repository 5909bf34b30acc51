"""Rows of a table that was adopted are anybody's: whatever is in one of them, the others are processed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit import Probe
from relaybox import Event, Inbox, Listeners
from relaybox.types import Columns, Order

from .effects import QUICK
from .kit import ENGINES, PATIENCE, fresh_url
from .test_poison import Attempt, operated
from .their_table import Theirs

COLUMNS = Columns(
    aggregate_id="key", headers="headers", sequence="sequence", priority="priority", received_at="received_at"
)
SHARED: dict[str, dict[str, str]] = {
    "attempts at the end": {"retry_count": "2147483647"},
    "attempts at the other end": {"retry_count": "-2147483648"},
    "attempts beyond what we count, and an error": {"retry_count": "70000", "error": "'" + "e" * 50_000 + "'"},
    "an error that is too long": {"error": "'" + "e" * 50_000 + "'"},
    "a number at the end": {"sequence": "2147483647"},
    "a number below zero": {"sequence": "-1"},
    "a priority at the end": {"priority": "2147483647"},
    "a priority below zero": {"priority": "-1"},
    "a type that is NULL": {"event_type": "NULL"},
    "a type that is empty": {"event_type": "''"},
    "a type that is too long": {"event_type": "'" + "t" * 5_000 + "'"},
    "a key that is empty": {"aggregate_id": "''", "sequence": "1"},
    "a key that is too long": {"aggregate_id": "'" + "k" * 5_000 + "'", "sequence": "1"},
    "a payload that is NULL": {"payload": "NULL"},
    "a payload that is large": {"payload": "'\"" + "x" * 3_000_000 + "\"'"},
    "headers that are NULL": {"headers": "NULL"},
    "headers that are a list": {"headers": "'[\"sequence\"]'"},
    "headers that are a number": {"headers": "'17'"},
    "headers that are nested deeply": {"headers": "'" + "[" * 20 + "]" * 20 + "'"},
    "headers that are too large": {"headers": '\'{"a": "' + "h" * 60_000 + "\"}'"},
    "processed before ever": {"processed_at": "'1970-01-01'", "retry_count": "-5"},
}
OWN: dict[str, dict[str, dict[str, str]]] = {
    "postgres": {
        "an infinite time": {"received_at": "'infinity'"},
        "a time before all": {"received_at": "'-infinity'"},
        "a time that is far": {"received_at": "'294276-01-01 00:00Z'"},
        "a time before Christ": {"received_at": "'4713-01-01 00:00Z BC'"},
        "processed at the end of time": {"processed_at": "'infinity'"},
        "processed at the beginning": {"processed_at": "'-infinity'"},
    },
    "sqlite": {
        "a time that is none": {"received_at": "'soon'"},
        "a time that is a number": {"received_at": "1e300"},
        "a type that is not UTF-8": {"event_type": "CAST(x'FF' AS text)"},
        "a key that is not UTF-8": {"aggregate_id": "CAST(x'FF' AS text)", "sequence": "1"},
        "headers that are not UTF-8": {"headers": "CAST(x'FF' AS text)"},
        "a payload that is a number": {"payload": "17"},
        "attempts that are text": {"retry_count": "'many'"},
        "a number that is text": {"sequence": "'first'"},
        "processed as text": {"processed_at": "'soon'"},
        "an error that is not UTF-8": {"error": "CAST(x'FF' AS text)"},
    },
    "mariadb": {
        "a time at the end": {"received_at": "'9999-12-31 23:59:59'"},
        "a time at the beginning": {"received_at": "'1000-01-01'"},
        "processed at the end of time": {"processed_at": "'9999-12-31 23:59:59'"},
    },
}


@pytest.mark.parametrize("way", [{}, {"order": Order()}], ids=["plain", "ordered"])
@pytest.mark.parametrize("engine", ENGINES)
def test_whatever_is_in_one_row_the_others_are_processed(engine: str, way: dict[str, Any], tmp_path: Path) -> None:
    theirs, probe, listeners = Theirs(fresh_url(engine, tmp_path), columns=COLUMNS), Probe(), Listeners[Any]()
    if engine == "mariadb":
        theirs.say(f"ALTER TABLE {theirs.table} MODIFY event_type longtext, MODIFY `key` longtext")
    honest: list[str] = []
    for n, values in enumerate((SHARED | OWN[engine]).values()):
        theirs.insert(f"before-{n}", n, event_type="'Honest'", aggregate_id=f"'k{n}'", sequence="1", headers="'{}'")
        theirs.insert(f"poison-{n}", n, **({"event_type": "'Poison'", "aggregate_id": f"'p{n}'"} | values))
        theirs.insert(f"behind-{n}", n, event_type="'Honest'", aggregate_id=f"'k{n}'", sequence="2", headers="'{}'")
        honest += [f"before-{n}", f"behind-{n}"]

    @listeners.on("Honest")
    def process(event: Event) -> None:
        probe.deliver(event, Attempt)

    with Inbox(theirs.url, "adopted", settings=QUICK, observers=[probe]) as inbox:
        inbox.adopt(theirs.table, theirs.columns)
        inbox.configure(**way)
        with inbox.process(listeners):
            probe.wait(probe.has(*honest), PATIENCE)
            operated(inbox)
    assert [event_id for event_id in honest if probe.count(event_id) != 1] == []
