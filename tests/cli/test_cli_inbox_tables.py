"""relaybox inbox create, adopt and drop."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from .conftest import Command

TABLE = 'CREATE TABLE "my orders" (nr text PRIMARY KEY, done text, retry_count integer, error text, body text)'
COLUMNS = ("id=nr", "processed_at=done", "payload=body", "received_at=", "event_type=")


@pytest.fixture
def url(tmp_path: Path) -> str:
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.execute(TABLE)
        db.execute("""INSERT INTO "my orders" (nr, body) VALUES ('a', '{}')""")
    db.close()
    return f"sqlite:///{tmp_path}/shop.db"


def test_create_and_drop(relaybox: Command, url: str) -> None:
    box = ("--url", url, "--inbox", "box")
    assert "inbox box is there" in relaybox("inbox", "create", *box, "--attempts", "3").stdout
    again = relaybox("inbox", "create", *box, exit_code=1)
    assert "there is an inbox 'box' already" in again.stderr
    relaybox("inbox", "create", *box, "--if-not-exists")
    kept = relaybox("inbox", "drop", *box, "--yes").stdout
    assert "inbox box is gone; 0 messages waited, 0 were dead letters; table box is still there" in kept
    assert "no inbox 'box'" in relaybox("inbox", "drop", *box, "--yes", exit_code=1).stderr
    assert "there is no inbox box" in relaybox("inbox", "drop", *box, "--yes", "--if-exists", "--cascade").stdout


def test_adopt(relaybox: Command, url: str) -> None:
    box = ("--url", url, "--inbox", "box")
    given = [word for column in COLUMNS for word in ("--column", column)]
    assert "'nr'" in relaybox("inbox", "adopt", "my orders", *box, exit_code=1).stderr
    wrong = relaybox("inbox", "adopt", "my orders", *box, "--column", "nr=id", exit_code=1)
    assert "expected --column NAME=COLUMN" in wrong.stderr
    adopted = relaybox("inbox", "adopt", "my orders", *box, *given).stdout
    assert "table my orders is inbox box now; 1 rows wait" in adopted
    assert "hint: no index" in adopted
    listed = relaybox.json("inbox", "list", "--url", url)["inboxes"]
    assert [(one["name"], one["table"], one["pending"]) for one in listed] == [("box", "my orders", 1)]
    assert "nobody answered" in relaybox("inbox", "drop", *box, exit_code=1).stderr
    assert "table my orders is still there" in relaybox("inbox", "drop", *box, "--yes", "--cascade").stdout
    as_json = relaybox.json("inbox", "adopt", "my orders", *box, *given)
    assert (as_json["table"], as_json["waiting"]) == ("my orders", 1)
