"""A command line to call, and outboxes with something in them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from relaybox import Event, Outbox
from relaybox.cli.app import app
from relaybox.drivers import open_sync
from relaybox.store.claims import Claim, Death, HeldRow, RetryRow
from relaybox.store.outbox.values import Settlement

MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("RELAYBOX_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)


class Command:
    """Runs `relaybox …` in this process and remembers everything it ever printed."""

    def __init__(self) -> None:
        self.printed = ""

    def __call__(self, *args: str, exit_code: int = 0, answer: str | None = None, **env: str) -> Any:
        result = CliRunner().invoke(app, args, input=answer, env=env)
        self.printed += result.output
        assert result.exit_code == exit_code, f"{args}: {result.exit_code}\n{result.output}\n{result.exception!r}"
        return result

    def json(self, *args: str, exit_code: int = 0, **env: str) -> Any:
        return json.loads(self(*args, "--json", exit_code=exit_code, **env).stdout)


@pytest.fixture
def relaybox() -> Command:
    return Command()


@pytest.fixture
def url(tmp_path: Path) -> str:
    address = f"sqlite:///{tmp_path}/shop.db"
    with closing(Outbox(address)) as box:
        box.migrate()
    return address


def write(url: str, *events: Event) -> None:
    with closing(Outbox(url)) as box, box.transaction() as tx:
        box.write_all(tx, events)


def settle(url: str, make: Callable[[int, HeldRow], Settlement], events: Sequence[Event]) -> None:
    """Write, claim and settle without a delivering process."""
    write(url, *events)
    with closing(Outbox(url)) as box, closing(open_sync(url)) as db:
        owner = db.run(box.store.register("test", "multi", MINUTE, None))
        rows = db.run(box.store.claim(Claim(owner, 7, MINUTE), 1000, None))
        for number, row in enumerate(rows):
            db.run(box.store.settle(make(number, HeldRow(row.row[0], 7)), None))
        db.run(box.store.retire(owner, None))


def kill(url: str, *events: Event, error: str = "ValueError: no") -> None:
    settle(url, lambda _, held: Settlement(dead=[Death(held.seq, held.token, error)]), events)


def finish(url: str, *events: Event) -> None:
    settle(url, lambda _, held: Settlement(done=[held]), events)


def block(url: str, event: Event) -> None:
    def hold(_: int, held: HeldRow) -> Settlement:
        return Settlement(retry=[RetryRow(held.seq, held.token, MINUTE, "held up")], hold=[held], ordered=True)

    settle(url, hold, [event])
