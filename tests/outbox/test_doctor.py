"""The doctor: verdicts as pure functions, and looks at real servers."""

from __future__ import annotations

import asyncio
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relaybox import Event, Outbox
from relaybox.clock import SYSTEM_CLOCK
from relaybox.drivers import open_async, open_sync
from relaybox.errors import StoreError
from relaybox.op import Query, Result, run
from relaybox.outbox.doctor import Finding, aexamine, checkup, examine, file_system_of
from relaybox.store.claims import Claim
from relaybox.store.doctor import Circumstances, Vitals, judge_clock, version, vitals
from relaybox.store.names import Tables
from relaybox.store.outbox import open_store
from relaybox.store.outbox.mysql import doctor as mysql
from relaybox.store.outbox.postgres import doctor as postgres
from relaybox.store.outbox.sqlite import doctor as sqlite
from relaybox.testing.servers import PostgresServer, require
from relaybox.testing.servers.process import ServerUnavailable

ALONE = Circumstances()
POSTGRES = {
    "server_version_num": "150018",
    "server_version": "15.18",
    "server_encoding": "UTF8",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "transaction_read_only": "off",
    "autovacuum": "on",
    "track_counts": "on",
    "max_connections": "100",
    "connections": "3",
    "backend_pid": "42",
    "in_recovery": "false",
    "pending.dead_tuples": "0",
    "pending.live_tuples": "10",
    "pending.autovacuum": "on",
}
SQLITE = {"version": "3.51.3", "journal_mode": "wal", "synchronous": 2, "quick_check": "ok", "file": "x.db"}
MYSQL = {
    "version": "10.11.6-MariaDB-log",
    "log_bin": "ON",
    "binlog_format": "MIXED",
    "innodb_flush_log_at_trx_commit": "1",
    "sync_binlog": "1",
    "innodb_doublewrite": "ON",
    "sql_mode": "STRICT_TRANS_TABLES",
    "tx_isolation": "REPEATABLE-READ",
    "wsrep_on": "OFF",
    "read_only": "OFF",
    "max_connections": "151",
    "Threads_connected": "2",
    "max_allowed_packet": "16777216",
    "collation.event_id": "utf8mb4_bin",
    "engine.outbox_event": "InnoDB",
    "time_zone": "SYSTEM",
}
JUDGES = {"postgres": (postgres, POSTGRES), "sqlite": (sqlite, SQLITE), "mysql": (mysql, MYSQL)}


def judged(dialect: str, around: Circumstances = ALONE, **changed: Any) -> dict[str, str]:
    """What is not well, as check -> level."""
    module, facts = JUDGES[dialect]
    given = {**facts, **{name.replace("__", "."): value for name, value in changed.items()}}
    findings = list(module.judge(Vitals({k: v for k, v in given.items() if v is not None}), around))
    for finding in findings:
        assert bool(finding.fix) == (finding.level != "ok"), finding
    return {f.check: f.level for f in findings if f.level != "ok"}


@pytest.mark.parametrize("dialect", JUDGES)
def test_a_healthy_server_has_no_complaints(dialect: str) -> None:
    assert judged(dialect) == {}


@pytest.mark.parametrize(
    ("changed", "check", "level"),
    [
        ({"server_version_num": "130012"}, "version", "critical"),
        ({"fsync": "off"}, "fsync", "critical"),
        ({"full_page_writes": "off"}, "full_page_writes", "critical"),
        ({"synchronous_commit": "off"}, "synchronous_commit", "critical"),
        ({"in_recovery": "true"}, "primary", "critical"),
        ({"transaction_read_only": "on"}, "primary", "critical"),
        ({"autovacuum": "off"}, "autovacuum", "warning"),
        ({"pending__autovacuum": "off"}, "vacuum", "warning"),
        ({"server_encoding": "SQL_ASCII"}, "encoding", "warning"),
        ({"longest_transaction": "301"}, "transactions", "warning"),
        ({"longest_idle_in_transaction": "61"}, "idle in transaction", "warning"),
        ({"oldest_prepared": "9000"}, "prepared transactions", "warning"),
        ({"pending__dead_tuples": "200000"}, "dead tuples", "warning"),
        ({"connections": "95"}, "connections", "warning"),
    ],
)
def test_postgres(changed: dict[str, str], check: str, level: str) -> None:
    assert judged("postgres", **changed) == {check: level}


def test_postgres_says_that_commits_may_be_lost() -> None:
    (found,) = (f for f in postgres.judge(Vitals({"synchronous_commit": "off"}), ALONE) if f.level == "critical")
    assert "commits may be lost on a crash" in found.text


def test_pooler() -> None:
    assert judged("postgres", Circumstances(announced_pid=42)) == {}
    assert judged("postgres", Circumstances(announced_pid=43)) == {"pooler": "warning"}


@pytest.mark.parametrize(
    ("changed", "check", "level"),
    [
        ({"version": "3.34.1"}, "version", "critical"),
        ({"journal_mode": "delete"}, "journal_mode", "warning"),
        ({"synchronous": 1}, "synchronous", "warning"),
        ({"synchronous": 0}, "synchronous", "critical"),
        ({"quick_check": "row 3 missing from index"}, "integrity", "critical"),
    ],
)
def test_sqlite(changed: dict[str, Any], check: str, level: str) -> None:
    assert judged("sqlite", **changed) == {check: level}


def test_sqlite_wal_reset_bug_matters_when_several_processes_write() -> None:
    assert judged("sqlite", version="3.51.2") == {}
    assert judged("sqlite", Circumstances(processes=2), version="3.51.2") == {"version": "warning"}
    assert judged("sqlite", Circumstances(processes=2)) == {}


def test_sqlite_on_a_network_file_system() -> None:
    assert judged("sqlite", Circumstances(file_system="nfs4")) == {"file system": "critical"}
    assert judged("sqlite", Circumstances(file_system="ext4")) == {}


@pytest.mark.parametrize(
    ("changed", "check", "level"),
    [
        ({"version": "5.7.44"}, "version", "critical"),
        ({"version": "10.5.9-MariaDB"}, "version", "critical"),
        ({"binlog_format": "STATEMENT"}, "binlog_format", "critical"),
        ({"innodb_flush_log_at_trx_commit": "2"}, "innodb_flush_log_at_trx_commit", "critical"),
        ({"sync_binlog": "0"}, "sync_binlog", "warning"),
        ({"sql_mode": ""}, "sql_mode", "warning"),
        ({"wsrep_on": "ON"}, "wsrep_on", "warning"),
        ({"read_only": "ON"}, "read_only", "critical"),
        ({"tx_isolation": "SERIALIZABLE"}, "isolation", "warning"),
        ({"collation__event_id": "utf8mb4_general_ci"}, "collation", "critical"),
        ({"collation__aggregate_id": "utf8mb4_general_ci"}, "collation", "warning"),
        ({"engine__outbox_event": "MyISAM"}, "engine", "critical"),
        ({"max_allowed_packet": "1048576"}, "max_allowed_packet", "warning"),
        ({"longest_transaction": "4000"}, "transactions", "warning"),
    ],
)
def test_mysql(changed: dict[str, str], check: str, level: str) -> None:
    assert judged("mysql", **changed) == {check: level}


def test_a_statement_log_is_harmless_when_there_is_no_binary_log() -> None:
    assert judged("mysql", log_bin="OFF", binlog_format="STATEMENT", sync_binlog="0") == {}


def test_versions_as_servers_write_them() -> None:
    assert version("8.0.36-0ubuntu0.22.04.1") == (8, 0, 36)
    assert version("5.5.5-10.6.18-MariaDB") == (10, 6, 18)
    assert version("") == ()


def test_clock_difference_is_judged_without_the_latency() -> None:
    op = vitals({"doctor.clock": Query("doctor.clock", "", "rows")}, SYSTEM_CLOCK)
    next(op)
    moment = SYSTEM_CLOCK.now() + timedelta(seconds=90)
    with pytest.raises(StopIteration) as done:
        op.send(Result([("clock", str(moment.timestamp()))], 1))
    (finding,) = judge_clock(done.value.value)
    assert finding.level == "warning"
    assert "90" in finding.text or "89.9" in finding.text
    assert [f.level for f in judge_clock(Vitals(clock_offset=-0.4))] == ["ok"]
    assert "behind" in next(iter(judge_clock(Vitals(clock_offset=-5.0)))).text


def test_a_refused_question_does_not_end_the_look() -> None:
    op = vitals({name: Query(name, "", "rows") for name in ("doctor.a", "outbox.x", "doctor.b")}, SYSTEM_CLOCK)
    assert next(op).query.name == "doctor.a"  # type: ignore[union-attr]
    assert op.throw(StoreError("permission denied")).query.name == "doctor.b"  # type: ignore[union-attr]
    with pytest.raises(StopIteration) as done:
        op.send(Result([("b", "1")], 1))
    assert done.value.value.unread == {"doctor.a": "permission denied"}
    assert done.value.value.facts == {"b": "1"}


def test_file_system_from_the_mount_table(tmp_path: Path) -> None:
    mounts = f"/dev/sda1 / ext4 rw 0 0\nserver:/export {tmp_path} nfs4 rw 0 0\n"
    assert file_system_of(str(tmp_path / "x.db"), lambda: mounts) == "nfs4"
    assert file_system_of("/elsewhere/x.db", lambda: mounts) == "ext4"

    def none_here() -> str:
        raise FileNotFoundError

    assert file_system_of("x.db", none_here) is None


# -- looks at real databases -----------------------------------------------------------------------------


def look(url: str, table: str = "outbox_event") -> dict[str, Finding]:
    with closing(open_sync(url)) as db:
        found = examine(db, open_store(db.dialect, Tables(table)))
    return {f.check: f for f in sorted(found, key=lambda f: ("ok", "warning", "critical").index(f.level))}


def critical(found: dict[str, Finding]) -> set[str]:
    return {f.check for f in found.values() if f.level == "critical"}


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/box.db"
    with closing(Outbox(url)) as box:
        box.migrate()
    return url


def test_healthy_sqlite(sqlite_url: str) -> None:
    found = look(sqlite_url)
    assert {f.level for f in found.values()} == {"ok"}
    assert {"version", "journal_mode", "synchronous", "integrity", "clock", "schema", "claims", "delivery"} <= set(
        found
    )


def test_missing_schema_and_drift(sqlite_url: str) -> None:
    assert look(sqlite_url, "elsewhere")["schema"].level == "critical"
    with closing(open_sync(sqlite_url)) as db, db.connection() as connection:
        connection.raw.execute("DROP INDEX outbox_event_pending_due")
    assert look(sqlite_url)["schema drift"].level == "warning"


def test_undelivered_dead_and_abandoned_events(sqlite_url: str) -> None:
    minute = timedelta(minutes=1)
    with closing(Outbox(sqlite_url)) as box, closing(open_sync(sqlite_url)) as db:
        db.run(box.store.write([Event("A", 1), Event("A", 2)], None, SYSTEM_CLOCK.now() - 2 * minute))
        found = look(sqlite_url)
        assert found["delivery"].level == "critical"
        assert "no process delivers" in found["delivery"].text
        db.run(box.store.claim(Claim(999, 1, minute), 1, None))
        assert "not registered" in look(sqlite_url)["claims"].text
        db.run(box.store.register("slow", "multi", minute, None))
        found = look(sqlite_url)
        assert found["delivery"].level == "warning"
        assert "behind" in found["delivery"].text


@pytest.mark.parametrize("kind", ["postgres-wheel", "postgres-system", "mariadb"])
def test_servers_that_forget_are_critical(kind: str) -> None:
    """The servers of the tests run without durability: exactly that is found, and every question is understood."""
    url = require(kind, durable=False).create_database()
    with closing(Outbox(url)) as box:
        box.migrate()
    found = look(url)
    expected = {"innodb_flush_log_at_trx_commit"} if kind == "mariadb" else {"fsync", "full_page_writes"}
    assert expected <= critical(found) <= expected | {"synchronous_commit"}
    assert not [f for f in found.values() if f.text.startswith("not checked")]
    assert {"version", "clock", "schema", "claims", "delivery", "connections"} <= set(found)


def test_durable_postgres_is_well_and_idle_transactions_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relaybox.store.doctor.LONG_IDLE", 0.0)
    try:
        server = PostgresServer.from_wheel(durable=True)
    except ServerUnavailable as missing:
        pytest.skip(str(missing))
    with server:
        url = server.create_database()
        with closing(Outbox(url)) as box:
            box.migrate()
        assert critical(look(url)) == set()
        with psycopg.connect(url) as forgotten:
            forgotten.execute("SELECT 1")
            assert look(url)["idle in transaction"].level == "warning"


def test_pooler_is_seen_sync_and_async() -> None:
    bouncer = require("pgbouncer", durable=False)
    url = bouncer.url()
    assert look(url, "unmigrated")["pooler"].level == "warning"

    async def with_driver(name: str) -> list[Finding]:
        db = open_async(url.replace("postgresql:", f"postgresql+{name}:"))
        try:
            return await aexamine(db, open_store("postgres", Tables("unmigrated")))
        finally:
            await db.close()

    for name in ("psycopg", "asyncpg"):
        levels = {f.check: f.level for f in asyncio.run(with_driver(name))}
        assert levels["pooler"] == "warning"


def test_a_database_that_answers_nothing_is_checked_as_far_as_possible() -> None:
    class Refusing:
        def execute(self, statement: object) -> Result:
            raise StoreError("no such thing")

    found = run(checkup(open_store("sqlite")), Refusing())
    assert "schema" in {f.check for f in found if f.level == "critical"}
