"""`relaybox feeds` on a real server."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from kit import one, rows
from relaybox import Outbox
from relaybox.testing.servers import require
from relaybox.types import FeedSource

from .conftest import Command

QUERY = "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer"
OPTIONS = ("--query", QUERY, "--key", "customer", "--source", "orders=customer")
FILE = """
[feeds.totals]
query_file = "totals.sql"
key = "customer"
inline_rows = 3

[feeds.totals.sources]
orders = "customer"

[feeds.named]
query = "SELECT o.id, c.name FROM orders o JOIN customer c ON c.id = o.customer"
key = ["id"]
mode = "differential"

[feeds.named.sources]
orders = "id"
customer = {columns = "id", resolve = "SELECT o.id FROM touched t JOIN orders o ON o.customer = t.id"}
"""


@pytest.fixture
def env() -> dict[str, str]:
    url = require("postgres-wheel", durable=False).create_database()
    with closing(Outbox(url)) as box:
        box.migrate()
    rows(url, "CREATE TABLE orders (id integer PRIMARY KEY, customer integer NOT NULL, amount numeric, note text)")
    rows(url, "CREATE INDEX ON orders (customer)")
    rows(url, "CREATE TABLE customer (id integer PRIMARY KEY, name text)")
    rows(url, "INSERT INTO customer VALUES (0, 'zero')")
    rows(url, "INSERT INTO orders SELECT g, g % 5, g FROM generate_series(1, 20) g")
    return {"RELAYBOX_URL": url}


def test_a_feed_is_made_refreshed_shown_and_dropped(relaybox: Command, env: dict[str, str]) -> None:
    assert "no feeds" in relaybox("feeds", "list", **env).stdout
    made = relaybox.json("feeds", "create", "totals", *OPTIONS, "--inline-rows", "5", **env)["feeds"]
    assert [(info["name"], info["table"], info["mode"]) for info in made] == [("totals", "public.feed_totals", "auto")]
    assert "delta 1, 5 inserted" in relaybox("feeds", "refresh", "totals", **env).stdout
    assert "nothing changed" in relaybox("feeds", "refresh", "totals", **env).stdout
    assert relaybox.json("feeds", "refresh", "totals", "--full", **env)["how"] == "full"
    done = relaybox.json("feeds", "snapshot", "totals", "--reason", "a new mirror", **env)
    assert (done["how"], done["delta"], done["inserted"]) == ("snapshot", 2, 5)
    rows(env["RELAYBOX_URL"], "UPDATE orders SET amount = 0 WHERE id = 1")
    shown = relaybox.json("feeds", "show", "totals", **env)
    assert (shown["deltas"], shown["waiting"], shown["stale"], shown["claim_checks_pending"]) == (2, 1, [], 0)
    assert "SELECT customer" in relaybox("feeds", "show", "totals", **env).stdout
    assert relaybox.json("feeds", "verify", "totals", **env) == {"rows": 1, "waiting": 1, "captured": True}
    assert [feed["deltas"] for feed in relaybox.json("feeds", "list", **env)["feeds"]] == [2]
    assert "public.feed_totals" in relaybox("feeds", "list", **env).stdout
    assert "nothing was changed" in relaybox("feeds", "drop", "totals", exit_code=1, answer="n\n", **env).output
    assert relaybox.json("feeds", "drop", "totals", "--yes", **env) == {"dropped": True}
    assert relaybox.json("feeds", "drop", "totals", "--yes", **env) == {"dropped": False}
    entries = relaybox.json("audit", **env)["entries"]
    found = [(entry["verb"], entry["reason"]) for entry in entries if entry["what"] == "feed totals"]
    assert found == [("drop", ""), ("snapshot", "a new mirror"), ("create", "")]


def test_a_pause_is_told_and_seen(relaybox: Command, env: dict[str, str]) -> None:
    relaybox("feeds", "create", "totals", *OPTIONS, **env)
    relaybox("feeds", "refresh", "totals", **env)
    assert "is paused" in relaybox("feeds", "pause", "totals", "--actor", "ann", **env).stdout
    assert "already" in relaybox("feeds", "pause", "totals", **env).stdout
    assert "paused" in relaybox("feeds", "refresh", "totals", exit_code=1, **env).output
    assert "changes go unseen" in relaybox("feeds", "verify", "totals", exit_code=1, **env).output
    assert relaybox.json("status", **env)["feeds"][0]["paused"] is True
    assert relaybox.json("feeds", "resume", "totals", **env)["paused"] is False
    assert "(resumed)" in relaybox("feeds", "refresh", "totals", **env).stdout
    seen = relaybox("status", **env).stdout
    assert "feeds" in seen
    assert "totals" in seen


def test_every_option_of_a_delta(relaybox: Command, env: dict[str, str]) -> None:
    options = ("--inline-bytes", "100", "--chunk-rows", "2", "--auto-share", "0", "--keep-empty")
    relaybox("feeds", "create", "totals", *OPTIONS, *options, **env)
    first, second = (relaybox.json("feeds", "refresh", "totals", **env) for _ in range(2))
    assert (first["delta"], first["claim_check"]) == (1, True)
    assert (second["delta"], second["claim_check"], second["inserted"]) == (2, False, 0)
    assert relaybox.json("feeds", "show", "totals", **env)["kept_chunks"] == 3
    stored = "SELECT inline_rows, inline_bytes, chunk_rows, auto_share, skip_empty FROM outbox_event_feed"
    assert rows(env["RELAYBOX_URL"], stored) == [(10_000, 100, 2, 0.0, False)]


def test_what_changed_since_a_full_refresh_is_no_fault(relaybox: Command, env: dict[str, str]) -> None:
    relaybox("feeds", "create", "totals", "--query", QUERY, "--key", "customer", "--mode", "full", **env)
    relaybox("feeds", "refresh", "totals", **env)
    rows(env["RELAYBOX_URL"], "UPDATE orders SET amount = 0 WHERE id = 1")
    assert "1 rows differ, 0 changes wait" in relaybox("feeds", "verify", "totals", **env).stdout


def test_the_rows_of_a_kept_delta(relaybox: Command, env: dict[str, str]) -> None:
    """As JSON that keeps every digit, in ASCII."""
    url = env["RELAYBOX_URL"]
    rows(url, "UPDATE orders SET amount = 0.10000000000000000001 WHERE id = 1")
    rows(url, "UPDATE orders SET note = 'für \x85' WHERE id = 2")
    relaybox(
        *("feeds", "create", "orders", "--query", "SELECT id, amount, note FROM orders", "--key", "id"),
        *("--source", "orders=id", "--inline-rows", "0", "--chunk-rows", "7"),
        **env,
    )
    relaybox("feeds", "refresh", "orders", **env)
    rows(url, "UPDATE orders SET amount = 7 WHERE id = 3")
    relaybox("feeds", "refresh", "orders", **env)
    lines = relaybox("feeds", "rows", "orders", "1", **env).stdout.splitlines()
    assert len(lines) == 20
    assert '{"op": "inserted", "row": {"id": 1, "amount": 0.10000000000000000001, "note": null}}' in lines
    assert json.loads(next(line for line in lines if '"id": 2,' in line))["row"]["note"] == "für \x85"
    assert all(line.isascii() for line in lines)
    assert [json.loads(line) for line in relaybox("feeds", "rows", "orders", "2", **env).stdout.splitlines()] == [
        {"op": "deleted", "row": {"id": 3, "amount": 3, "note": None}},
        {"op": "inserted", "row": {"id": 3, "amount": 7, "note": None}},
    ]
    assert "not kept" in relaybox("feeds", "rows", "orders", "3", exit_code=1, **env).output
    assert "no feed 'nothing'" in relaybox("feeds", "rows", "nothing", "3", exit_code=1, **env).output


def test_a_group_that_hands_off(relaybox: Command, env: dict[str, str]) -> None:
    relaybox("feeds", "create", "totals", *OPTIONS, "--inline-rows", "0", **env)
    relaybox("groups", "create", "totals", "loader", **env)
    off = ("feeds", "hand-off", "totals", "--group", "loader")
    assert relaybox.json(*off, "--reason", "loads are long", **env) == {"changed": True}
    relaybox("feeds", "refresh", "totals", **env)
    assert relaybox.json("feeds", "show", "totals", **env)["claim_checks_pending"] == 1
    assert "waits no more" in relaybox("feeds", "consumed", "totals", "1", "--group", "loader", **env).stdout
    assert relaybox.json("feeds", "consumed", "totals", "1", "--group", "loader", **env) == {"changed": False}
    assert "do not wait" in relaybox(*off, "--off", **env).stdout
    assert (
        "hand_off first" in relaybox("feeds", "consumed", "totals", "1", "--group", "loader", exit_code=1, **env).output
    )


def test_definitions_from_a_file(relaybox: Command, env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "feeds.toml").write_text(FILE)
    (tmp_path / "totals.sql").write_text(QUERY)
    made = relaybox.json("feeds", "create", "named", "--from", "feeds.toml", **env)["feeds"]
    assert [info["name"] for info in made] == ["named"]
    made = relaybox.json("feeds", "create", "--from", "feeds.toml", "--reason", "all", **env)["feeds"]
    assert (made[0]["name"], made[0]["query"]) == ("totals", QUERY)
    assert [info["mode"] for info in made] == ["auto", "differential"]
    assert "delta 1" in relaybox("feeds", "refresh", "named", **env).stdout
    rows(env["RELAYBOX_URL"], "UPDATE customer SET name = 'none'")
    assert "4 inserted, 4 deleted, differential" in relaybox("feeds", "refresh", "named", **env).stdout


def test_definitions_from_a_module_and_from_options(relaybox: Command, env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "shop_feeds.py").write_text(
        "from relaybox import Feed\n"
        "ONE = Feed('one', 'SELECT id FROM orders', key='id', mode='full')\n"
        "ALL = [ONE, Feed('two', 'SELECT id FROM orders', key='id', sources={'orders': 'id'})]\n"
    )
    names = [info["name"] for info in relaybox.json("feeds", "create", "--from", "shop_feeds:ALL", **env)["feeds"]]
    assert names == ["one", "two"]
    assert (
        "defines no feed 'two'"
        in relaybox("feeds", "create", "two", "--from", "shop_feeds:ONE", exit_code=1, **env).output
    )
    (tmp_path / "named.sql").write_text("SELECT o.id, c.name FROM orders o JOIN customer c ON c.id = o.customer")
    relaybox(
        *("feeds", "create", "named", "--query-file", "named.sql", "--key", "id", "--source", "orders=id"),
        *("--source", "customer=id", "--by-row", "customer", "--kept-as", "kept", "--topic", "deltas"),
        *("--resolve", "customer=SELECT o.id FROM touched t JOIN orders o ON o.customer = t.id"),
        **env,
    )
    with closing(Outbox(env["RELAYBOX_URL"])) as box:
        info = box.feeds.get("named")
    assert info is not None
    assert (info.table, info.topic) == ("public.kept", "deltas")
    mapped = json.loads(one(env["RELAYBOX_URL"], "SELECT sources FROM outbox_event_feed WHERE name = 'named'"))
    resolve = "SELECT o.id FROM touched t JOIN orders o ON o.customer = t.id"
    source = FeedSource("id", resolve, by_row=True)
    assert mapped[1] == {"table": "customer", "columns": list(source.columns), "capture": "row", "resolve": resolve}


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("totals", "--key", "customer"), 2, "--query or --query-file"),
        (("--from", "feeds.toml", "--query", "SELECT 1"), 2, "the definition is in --from"),
        (("--from", "feeds.toml", "--every", "1m", "--mode", "full"), 2, "say every, mode there"),
        (("totals", *OPTIONS[:4], "--source", "orders"), 2, "expected TABLE="),
        (("totals", *OPTIONS[:4], "--by-row", "orders"), 2, "no --source orders=COLUMN"),
        (("totals", "--query-file", "nothing.sql", "--key", "customer"), 1, "cannot read nothing.sql"),
        (("totals", *OPTIONS[:4], "--source", "nowhere=id"), 1, "no table nowhere"),
        (("--from", "nothing.toml"), 1, "cannot read nothing.toml"),
        (("--from", "bad.toml"), 1, "unknown entry 'colour' of [feeds.totals]"),
        (("--from", "empty.toml"), 1, "no table [feeds.NAME]"),
        (("--from", "poor.toml"), 1, "needs key"),
        (("--from", "json:loads"), 1, "to be a Feed or several"),
    ],
)
def test_what_is_no_definition(
    relaybox: Command, env: dict[str, str], tmp_path: Path, args: tuple[str, ...], code: int, words: str
) -> None:
    (tmp_path / "bad.toml").write_text('[feeds.totals]\nquery = "SELECT 1"\nkey = "a"\ncolour = "red"\n')
    (tmp_path / "empty.toml").write_text("")
    (tmp_path / "poor.toml").write_text('[feeds.totals]\nquery = "SELECT 1"\n')
    said = relaybox("feeds", "create", *args, exit_code=code, **env).output
    assert words in " ".join(said.replace("│", " ").split())


def test_elsewhere_there_are_none(relaybox: Command, url: str) -> None:
    assert "PostgreSQL" in relaybox("feeds", "list", exit_code=1, RELAYBOX_URL=url).output
    assert relaybox.json("status", RELAYBOX_URL=url)["feeds"] == []
