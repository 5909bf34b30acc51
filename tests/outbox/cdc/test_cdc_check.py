"""`relaybox cdc check` against servers that are ready, and against those that are not."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import psycopg
import pymysql
import pytest
from typer.testing import CliRunner

from relaybox import Event, Outbox
from relaybox.cli.app import app
from relaybox.testing.servers import MariaDBServer, PostgresServer, require

PUBLICATION = """CREATE PUBLICATION "outbox_event_cdc" FOR TABLE "outbox_event" WITH (publish = 'insert')"""


def check(url: str, *, code: int = 0) -> dict[str, tuple[str, str, str]]:
    result = CliRunner().invoke(app, ["cdc", "check", "--json"], env={"RELAYBOX_URL": url})
    assert result.exit_code == code, result.output
    return {f["check"]: (f["level"], f["text"], f["fix"]) for f in json.loads(result.stdout)["findings"]}


def levels(found: dict[str, tuple[str, str, str]]) -> dict[str, str]:
    return {name: level for name, (level, _, _) in found.items() if level != "ok"}


def migrated(url: str) -> str:
    with closing(Outbox(url, cdc=True)) as box:
        box.migrate()
        with box.transaction() as tx:
            box.write(tx, Event("A", None))
    return url


def execute(url: str, *statements: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as db:
        cursor = [db.execute(statement) for statement in statements][-1]
        return cursor.fetchall() if cursor.description else []


def as_role(url: str, role: str) -> str:
    return url.replace("//relaybox@", f"//{role}@")


def test_a_server_without_logical_decoding() -> None:
    url = require("postgres-wheel", durable=False).create_database()
    found = check(url, code=1)
    assert levels(found) == {
        "wal_level": "critical",
        "table": "critical",
        "publication": "critical",
        "max_slot_wal_keep_size": "warning",
    }
    assert "restart" in found["wal_level"][2]


def test_postgresql_until_it_is_ready(postgres: PostgresServer) -> None:
    url = postgres.create_database()
    assert "relaybox migrate" in check(url, code=1)["table"][2]
    migrated(url)
    execute(url, "DROP ROLE IF EXISTS connect", "CREATE ROLE connect LOGIN")
    reader = as_role(url, "connect")
    found = check(reader, code=1)
    assert levels(found) == {"role": "critical", "table": "critical", "publication": "critical"}
    execute(url, *(found[name][2] for name in ("role", "table", "publication")))  # what it says is what to do
    assert levels(check(reader)) == {}
    execute(url, "ALTER PUBLICATION outbox_event_cdc SET (publish = 'insert, delete')")
    assert levels(check(reader)) == {"publication": "warning"}
    execute(url, "ALTER PUBLICATION outbox_event_cdc SET (publish = 'delete')")
    assert levels(check(reader, code=1)) == {"publication": "critical"}
    execute(url, "DROP PUBLICATION outbox_event_cdc", PUBLICATION)
    execute(url, "CREATE SCHEMA sales", "ALTER TABLE outbox_event SET SCHEMA sales")
    execute(url, "GRANT USAGE ON SCHEMA sales TO connect")
    elsewhere = check(f"{reader}?options=-csearch_path%3Dsales", code=1)
    assert elsewhere["table"][2] == "use --schema sales"


def test_events_that_cannot_be_routed(postgres: PostgresServer) -> None:
    url = migrated(postgres.create_database())
    execute(url, PUBLICATION)
    with closing(Outbox(url)) as box, box.transaction() as tx:
        box.write(tx, Event("B", None))
    found = check(url, code=1)
    assert levels(found) == {"routes": "critical"}
    assert found["routes"][1].startswith("1 of the newest")


def test_a_slot_nobody_reads_and_one_that_lost_its_place(postgres: PostgresServer) -> None:
    url = migrated(postgres.create_database())
    execute(url, PUBLICATION, "SELECT pg_create_logical_replication_slot('left_behind', 'pgoutput')")
    try:
        found = check(url)
        assert levels(found) == {"slot": "warning"}
        assert "nobody reads left_behind" in found["slot"][1]
        other = postgres.create_database()  # its WAL counts as well: a slot keeps the whole server's
        for _ in range(4):
            execute(other, "CREATE TABLE filler AS SELECT repeat('x', 1000) FROM generate_series(1, 30000)")
            execute(other, "DROP TABLE filler", "SELECT pg_switch_wal()", "CHECKPOINT")
        assert execute(url, "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'left_behind'") == [
            ("lost",)
        ]
        found = check(url, code=1)
        assert levels(found) == {"slot": "critical"}
        assert "pg_drop_replication_slot('left_behind')" in found["slot"][2]
    finally:
        execute(url, "SELECT pg_drop_replication_slot('left_behind')")


def test_mariadb(mariadb: MariaDBServer) -> None:
    url = migrated(mariadb.create_database())
    found = check(url, code=1)
    assert levels(found) == {"server": "critical"}
    assert found["server"][2] == "begin the URL with mariadb://"
    url = url.replace("mysql://", "mariadb://")
    assert levels(check(url)) == {}
    root = pymysql.connect(host="127.0.0.1", port=mariadb.port, user="relaybox", password="relaybox", autocommit=True)
    with closing(root), root.cursor() as cursor:
        cursor.execute("CREATE OR REPLACE USER 'reader'@'127.0.0.1' IDENTIFIED BY 's3cret'")
        cursor.execute(f"GRANT SELECT ON `{url.rpartition('/')[2]}`.* TO 'reader'@'127.0.0.1'")
        reader = url.replace("relaybox:relaybox@", "reader:s3cret@")
        found = check(reader)
        assert levels(found) == {"role": "warning"}
        assert found["role"][1] == "the account itself lacks REPLICATION SLAVE and REPLICATION CLIENT"
        cursor.execute("GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'reader'@'127.0.0.1'")
        cursor.execute("SET GLOBAL binlog_row_image = 'MINIMAL', GLOBAL binlog_expire_logs_seconds = 600")
        try:
            assert levels(check(reader, code=1)) == {"binlog_row_image": "critical", "retention": "warning"}
        finally:
            cursor.execute("SET GLOBAL binlog_row_image = 'FULL', GLOBAL binlog_expire_logs_seconds = 864000")


def test_mariadb_without_a_binary_log() -> None:
    url = require("mariadb", durable=False).create_database().replace("mysql://", "mariadb://")
    found = levels(check(url, code=1))
    assert found["log_bin"] == "critical"


def test_sqlite_is_refused(tmp_path: Any) -> None:
    url = migrated(f"sqlite:///{tmp_path}/shop.db")
    result = CliRunner().invoke(app, ["cdc", "check"], env={"RELAYBOX_URL": url})
    assert result.exit_code == 1
    assert "SQLite has no log" in result.output


def test_a_table_for_people(postgres: PostgresServer) -> None:
    url = migrated(postgres.create_database())
    result = CliRunner().invoke(app, ["cdc", "check"], env={"RELAYBOX_URL": url})
    assert result.exit_code == 1
    assert PUBLICATION in " ".join(result.output.split())


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
