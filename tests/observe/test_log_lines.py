"""No value from outside forges a line of the log, nor commands a terminal."""

from __future__ import annotations

import logging

import pytest

from relaybox.facts import Died, Observers
from relaybox.printable import Lines

FORGED = "a\n2026-01-01 ERROR forged \x1b[2J\u2028\x00"


def test_values_are_escaped_in_every_line(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("relaybox")
    log.warning("event %s (%s) failed: %s", FORGED, 7, ValueError(FORGED))
    log.warning("a stack:%s", Lines("\n  File x\n  File y"))
    first, second = (record.getMessage() for record in caplog.records)
    shown = "a\\n2026-01-01 ERROR forged \\x1b[2J\\u2028\\x00"
    assert first == f"event {shown} (7) failed: {shown}"
    assert second == "a stack:\n  File x\n  File y"


def test_a_row_that_another_program_wrote(caplog: pytest.LogCaptureFixture) -> None:
    Observers()(Died(event_id=FORGED, event_type=FORGED, attempts=1, error="E: x", undecodable=False))
    assert [record.getMessage().isprintable() for record in caplog.records] == [True]
