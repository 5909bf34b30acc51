"""Every change by an operator is told once, logged once and kept in a row of its transaction."""

from __future__ import annotations

import getpass
import logging
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from relaybox import ConfigError, Inbox, Outbox, Settings
from relaybox.audit import Auditor
from relaybox.clock import SYSTEM_CLOCK
from relaybox.drivers import open_sync
from relaybox.drivers.script import Script, play
from relaybox.facts import Administered, Fact, Observers
from relaybox.op import Op
from relaybox.store.schema import Schema
from relaybox.testing import ManualClock
from relaybox.types import AdminSettings


class Desk:
    """An operator of an outbox or an inbox, whose ops answer what the test says."""

    def __init__(self, url: str, box: Outbox | Inbox, settings: Settings | None = None) -> None:
        self.facts: list[Fact] = []
        self.box = box
        self.store: Schema = box.store
        self.db = open_sync(url)
        self.auditor = Auditor(self.store, settings or Settings(), Observers([self.facts.append]), SYSTEM_CLOCK)

    def op(self, answer: Any, fail: bool = False) -> Op[Any]:
        yield self.store.sql["audit.list"].bind(limit=1, before=None)
        if fail:
            raise RuntimeError("the database is away")
        return answer

    def play(self, script: Script[Any]) -> Any:
        return play(script, self.db)


@pytest.fixture(params=["outbox", "inbox"])
def desk(request: pytest.FixtureRequest, url: str) -> Iterator[Desk]:
    box: Outbox | Inbox = Outbox(url) if request.param == "outbox" else Inbox(url)
    found = Desk(url, box)
    yield found
    found.db.close()
    box.close()


def test_a_change_is_written_down_and_told(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "relaybox")
    script = desk.auditor.audited("release", "key k1", desk.op(True), {"reason": "repaired", "actor": "ann"})
    assert desk.play(script) is True
    (entry,) = desk.box.audit()
    assert (entry.actor, entry.verb, entry.what, entry.changed, entry.reason) == (
        "ann", "release", "key k1", 1, "repaired",
    )  # fmt: skip
    assert desk.facts == [Administered("release", "key k1", 1, "ann", "repaired")]
    assert [r.getMessage() for r in caplog.records] == ["release 'key k1' (1) by 'ann', reason 'repaired'"]


def test_several_transactions_have_one_row(desk: Desk) -> None:
    change = desk.auditor.begin("replay", "dead letters", {})
    for count in (2, 0, 3):
        desk.play(change.commit(desk.op(count)))
        assert [entry.changed for entry in desk.box.audit()] == [change.changed]
    change.tell()
    assert [entry.changed for entry in desk.box.audit()] == [5]
    assert desk.facts == [Administered("replay", "dead letters", 5, f"{getpass.getuser()}@{socket.gethostname()}", "")]


@pytest.mark.parametrize("answer", [False, 0])
def test_nothing_changed_is_nothing_told(desk: Desk, answer: object) -> None:
    assert desk.play(desk.auditor.audited("release", "key k1", desk.op(answer), {})) == answer
    assert (desk.box.audit(), desk.facts) == ([], [])


def test_a_change_without_a_number(desk: Desk) -> None:
    desk.play(desk.auditor.audited("pause", "group orders/mail", desk.op(None), {}))
    assert [(entry.verb, entry.changed) for entry in desk.box.audit()] == [("pause", None)]


def test_a_failed_change_leaves_nothing(desk: Desk) -> None:
    with pytest.raises(RuntimeError):
        desk.play(desk.auditor.audited("release", "key k1", desk.op(True, fail=True), {}))
    assert (desk.box.audit(), desk.facts) == ([], [])


def test_a_reason_may_be_required(desk: Desk) -> None:
    desk.auditor.settings = AdminSettings(require_reason=True, actor="batch")
    with pytest.raises(ConfigError, match=r"give a reason to release key k1"):
        desk.play(desk.auditor.audited("release", "key k1", desk.op(True), {"reason": " "}))
    desk.play(desk.auditor.audited("release", "key k1", desk.op(True), {"reason": "asked by ann"}))
    assert [entry.actor for entry in desk.box.audit()] == ["batch"]


def test_the_newest_first_by_pages(desk: Desk) -> None:
    for n in range(5):
        desk.play(desk.auditor.audited("release", f"key k{n}", desk.op(True), {}))
    first = desk.box.audit(limit=3)
    assert [entry.what for entry in first] == ["key k4", "key k3", "key k2"]
    assert [entry.what for entry in desk.box.audit(before=first[-1].id)] == ["key k1", "key k0"]
    with pytest.raises(ConfigError, match="limit"):
        desk.box.audit(limit=0)


def test_old_rows_go_as_the_settings_say(desk: Desk) -> None:
    desk.auditor.clock = clock = ManualClock()
    desk.play(desk.auditor.audited("release", "key k1", desk.op(True), {}))
    clock.advance(timedelta(seconds=3600))
    assert desk.db.run(desk.auditor.purge()) == 0
    desk.auditor.settings = AdminSettings(audit_retention="2h")
    assert desk.db.run(desk.auditor.purge()) == 0
    clock.advance(timedelta(seconds=3601))
    assert desk.db.run(desk.auditor.purge()) == 1
    assert desk.box.audit() == []
