"""What a server's settings mean for delivery: facts in, findings out.

The `doctor.*` blocks of a dialect answer rows of (name, value). `vitals` collects them as one op; the judges
below are pure and know nothing of connections, so every verdict can be tested without breaking a server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from ..clock import Clock
from ..errors import StoreError
from ..op import Op, Query

Level = Literal["ok", "warning", "critical"]

LONG_TRANSACTION = 300.0
LONG_IDLE = 60.0
CLOCK_TOLERANCE = 1.0
NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "9p", "ceph", "gluster", "lustre", "afs", "fuse.sshfs", "ocfs2", "gfs")


@dataclass(frozen=True, slots=True)
class Finding:
    """One verdict. `critical`: committed events may be lost or not delivered. `fix` is empty when all is well."""

    level: Level
    check: str
    text: str
    fix: str = ""


@dataclass(slots=True)
class Vitals:
    """What the server said, the clock offset in seconds, and what it would not say (query name -> error)."""

    facts: dict[str, Any] = field(default_factory=dict)
    clock_offset: float | None = None
    unread: dict[str, str] = field(default_factory=dict)


def vitals(queries: Mapping[str, Query], clock: Clock) -> Op[Vitals]:
    """Ask everything; a refused question (a missing table, a missing privilege) does not end the look."""
    seen = Vitals()
    for name, query in queries.items():
        if not name.startswith("doctor."):
            continue
        before = clock.now()
        try:
            result = yield query.bind()
        except StoreError as error:
            seen.unread[name] = str(error)
            continue
        after = clock.now()
        seen.facts.update({str(row[0]): _text(row[1]) for row in result.rows})
        if name == "doctor.clock":
            seen.clock_offset = _offset(float(seen.facts["clock"]), before, after)
    return seen


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _offset(there: float, before: datetime, after: datetime) -> float:
    """How far the database's clock is outside the time the question took: latency is not skew."""
    moment = datetime.fromtimestamp(there, UTC)
    if moment < before:
        return (moment - before).total_seconds()
    return max(timedelta(0), moment - after).total_seconds()


class Facts:
    """Typed access: a fact that is not there is None, never a wrong verdict."""

    def __init__(self, seen: Vitals) -> None:
        self._all = {name.lower(): value for name, value in seen.facts.items()}

    def text(self, name: str) -> str | None:
        value = self._all.get(name)
        return None if value is None else str(value).lower()

    def number(self, name: str) -> float | None:
        value = self._all.get(name)
        return None if value is None else float(value)

    def starting(self, prefix: str) -> dict[str, str]:
        return {n.removeprefix(prefix): str(v) for n, v in self._all.items() if n.startswith(prefix)}


def version(text: str) -> tuple[int, ...]:
    """`5.5.5-10.6.18-MariaDB` is 10.6.18: old clients needed the prefix."""
    numbers = re.findall(r"\d+(?:\.\d+)+", text.removeprefix("5.5.5-"))
    return tuple(int(part) for part in numbers[0].split(".")) if numbers else ()


def judge_clock(seen: Vitals) -> Iterator[Finding]:
    offset = seen.clock_offset
    if offset is None:
        return
    if abs(offset) > CLOCK_TOLERANCE:
        yield Finding(
            "warning",
            "clock",
            f"the database's clock is {abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} this machine's; "
            "delayed events (deliver_at) and purges are that much off",
            "synchronise both clocks (NTP)",
        )
    else:
        yield Finding("ok", "clock", "the clocks agree within a second")


def judge_postgres(seen: Vitals, announced_pid: int | None = None) -> Iterator[Finding]:
    facts = Facts(seen)
    number = facts.number("server_version_num")
    if number is not None:
        shown = facts.text("server_version") or ""
        yield (
            Finding("ok", "version", f"PostgreSQL {shown}")
            if number >= 140000
            else Finding("critical", "version", f"PostgreSQL {shown} is older than 14", "upgrade the server")
        )
    yield from _switches(facts, _POSTGRES_SWITCHES)
    if facts.text("in_recovery") == "true":
        yield Finding("critical", "primary", "this server is a standby: nothing can be written", "use the primary's URL")
    elif facts.text("transaction_read_only") == "on":
        yield Finding(
            "critical",
            "primary",
            "transactions are read-only here: nothing can be written",
            "check default_transaction_read_only of the server, the database and the role",
        )
    else:
        yield Finding("ok", "primary", "the server takes writes")
    encoding = facts.text("server_encoding")
    if encoding is not None:
        yield (
            Finding("ok", "encoding", "UTF8")
            if encoding == "utf8"
            else Finding(
                "warning",
                "encoding",
                f"the database's encoding is {encoding.upper()}: an event with other characters in its key or headers is refused",
                "use a UTF8 database",
            )
        )
    yield from _pooler(facts, announced_pid)
    yield from _ages(facts)
    yield from _pending_bloat(facts)
    yield from _headroom(facts.number("connections"), facts.number("max_connections"))


_Switch = tuple[str, Callable[[str], bool], Level, str, str]

_POSTGRES_SWITCHES: tuple[_Switch, ...] = (
    (
        "fsync",
        lambda v: v == "on",
        "critical",
        "fsync is off: a crash of the machine may lose committed events or destroy the database",
        "set fsync = on",
    ),
    (
        "full_page_writes",
        lambda v: v == "on",
        "critical",
        "full_page_writes is off: a crash may leave torn pages, unless the file system writes pages as a whole",
        "set full_page_writes = on",
    ),
    (
        "synchronous_commit",
        lambda v: v != "off",
        "critical",
        "synchronous_commit is off: commits may be lost on a crash, the business rows together with their events",
        "set synchronous_commit = on for this database or role",
    ),
    (
        "autovacuum",
        lambda v: v == "on",
        "warning",
        "autovacuum is off: the pending table grows and polls become slow",
        "set autovacuum = on",
    ),
    (
        "track_counts",
        lambda v: v == "on",
        "warning",
        "track_counts is off, so autovacuum never knows when to run",
        "set track_counts = on",
    ),
)


def _switches(facts: Facts, switches: tuple[_Switch, ...]) -> Iterator[Finding]:
    for name, good, level, text, fix in switches:
        value = facts.text(name)
        if value is not None:
            yield Finding("ok", name, f"{name} = {value}") if good(value) else Finding(level, name, text, fix)


def _pooler(facts: Facts, announced_pid: int | None) -> Iterator[Finding]:
    pid = facts.number("backend_pid")
    if announced_pid is None or pid is None:
        return
    if int(pid) == announced_pid:
        yield Finding("ok", "pooler", "connected to the server itself")
    else:
        yield Finding(
            "warning",
            "pooler",
            "there is a pooler in between: LISTEN does not work through it, other processes' events are found by polling",
            "fine for writers; give delivering processes a direct URL, or set poll_interval to the latency you want",
        )


def _ages(facts: Facts) -> Iterator[Finding]:
    checks = (
        ("longest_transaction", "transactions", LONG_TRANSACTION, "a transaction has been open for", "end it"),
        (
            "longest_idle_in_transaction",
            "idle in transaction",
            LONG_IDLE,
            "a session sits idle in a transaction for",
            "commit before waiting; set idle_in_transaction_session_timeout",
        ),
        (
            "oldest_prepared",
            "prepared transactions",
            LONG_TRANSACTION,
            "a prepared transaction (two-phase commit) waits for",
            "COMMIT PREPARED or ROLLBACK PREPARED it (see pg_prepared_xacts)",
        ),
    )
    for name, check, limit, text, fix in checks:
        age = facts.number(name) or 0.0
        if age > limit:
            yield Finding(
                "warning",
                check,
                f"{text} {age:,.0f} s: its events stay invisible, vacuum cannot clean up and polls become slow",
                fix,
            )
        else:
            yield Finding("ok", check, f"none older than {limit:.0f} s")


def _pending_bloat(facts: Facts) -> Iterator[Finding]:
    if facts.text("pending.autovacuum") == "off":
        yield Finding(
            "warning", "vacuum", "autovacuum is off for the pending table", "ALTER TABLE … RESET (autovacuum_enabled)"
        )
    dead, live = facts.number("pending.dead_tuples"), facts.number("pending.live_tuples")
    if dead is None or live is None:
        return
    if dead > 100_000 and dead > 2 * live:
        yield Finding(
            "warning",
            "dead tuples",
            f"the pending table has {dead:,.0f} dead tuples for {live:,.0f} live ones: polls read past them",
            "look for long transactions, then VACUUM the table",
        )
    else:
        yield Finding("ok", "dead tuples", f"{dead:,.0f} in the pending table")


def _headroom(used: float | None, limit: float | None) -> Iterator[Finding]:
    if not used or not limit:
        return
    if used > 0.9 * limit:
        yield Finding(
            "warning",
            "connections",
            f"{used:.0f} of {limit:.0f} connections are in use: the next process may be refused",
            "raise max_connections, or put a pooler before the writers",
        )
    else:
        yield Finding("ok", "connections", f"{used:.0f} of {limit:.0f} in use")


def judge_sqlite(seen: Vitals, *, file_system: str | None = None, processes: int = 1) -> Iterator[Finding]:
    facts = Facts(seen)
    shown = facts.text("version") or ""
    numbers = version(shown)
    journal = facts.text("journal_mode")
    if numbers < (3, 35):
        yield Finding("critical", "version", f"SQLite {shown} is older than 3.35", "use a newer Python build")
    else:
        yield Finding("ok", "version", f"SQLite {shown}")
    if numbers < (3, 51, 3) and journal == "wal" and processes > 1:
        yield Finding(
            "warning",
            "WAL reset",
            f"SQLite {shown} has the WAL-reset bug (fixed in 3.51.3): several processes that write at the same "
            "moment can, very rarely, damage the file",
            "use SQLite 3.51.3 or newer, or one writing process",
        )
    if journal is not None:
        yield (
            Finding("ok", "journal_mode", journal)
            if journal in ("wal", "memory")
            else Finding(
                "warning", "journal_mode", f"journal_mode is {journal}: readers and writers wait for one another", "use WAL"
            )
        )
    synchronous = facts.number("synchronous")
    if synchronous is not None and synchronous < 2:
        level: Level = "critical" if synchronous == 0 or journal != "wal" else "warning"
        yield Finding(
            level,
            "synchronous",
            "synchronous is below FULL: the last commits may be lost at a power cut",
            "PRAGMA synchronous = FULL",
        )
    elif synchronous is not None:
        yield Finding("ok", "synchronous", "FULL: commits survive a power cut")
    damage = facts.text("quick_check")
    if damage is not None:
        yield (
            Finding("ok", "integrity", "quick_check found no damage")
            if damage == "ok"
            else Finding("critical", "integrity", f"the file is damaged: {damage[:200]}", "restore it (sqlite3 .recover)")
        )
    if file_system and file_system.startswith(NETWORK_FILE_SYSTEMS):
        yield Finding(
            "critical",
            "file system",
            f"the file lies on {file_system}, a network file system: SQLite's locks and WAL do not work there",
            "move it to a local disk, or use PostgreSQL or MySQL",
        )


_MYSQL_SWITCHES: tuple[_Switch, ...] = (
    (
        "innodb_flush_log_at_trx_commit",
        lambda v: v == "1",
        "critical",
        "innodb_flush_log_at_trx_commit is not 1: commits may be lost on a crash, with their events",
        "set innodb_flush_log_at_trx_commit = 1",
    ),
    (
        "innodb_doublewrite",
        lambda v: v not in ("off", "0"),
        "warning",
        "innodb_doublewrite is off: a crash may leave torn pages",
        "set innodb_doublewrite = ON",
    ),
    (
        "sql_mode",
        lambda v: "strict_" in v,
        "warning",
        "sql_mode is not strict: the application's own sessions cut values that do not fit",
        "add STRICT_TRANS_TABLES to sql_mode",
    ),
    (
        "read_only",
        lambda v: v in ("off", "0"),
        "critical",
        "the server is read-only: nothing can be written",
        "use the primary's URL",
    ),
    (
        "wsrep_on",
        lambda v: v in ("off", "0"),
        "warning",
        "this is a Galera cluster: writes on several nodes conflict at commit, and SKIP LOCKED sees local locks only",
        "send all of relaybox's traffic to one node",
    ),
)


def judge_mysql(seen: Vitals) -> Iterator[Finding]:
    facts = Facts(seen)
    shown = facts.text("version") or ""
    product, oldest = ("MariaDB", (10, 6)) if "mariadb" in shown else ("MySQL", (8, 0))
    if version(shown) < oldest:
        wanted = ".".join(map(str, oldest))
        yield Finding("critical", "version", f"{product} {shown} is older than {wanted}", "upgrade the server")
    else:
        yield Finding("ok", "version", f"{product} {shown}")
    yield from _switches(facts, _MYSQL_SWITCHES)
    yield from _binlog(facts)
    isolation = facts.text("transaction_isolation") or facts.text("tx_isolation")
    if isolation is not None:
        yield (
            Finding("warning", "isolation", "the default is SERIALIZABLE: every read locks", "use READ COMMITTED")
            if isolation == "serializable"
            else Finding("ok", "isolation", f"{isolation}; relaybox's own sessions use READ COMMITTED")
        )
    zone = facts.text("time_zone")
    if zone is not None:
        yield Finding("ok", "time zone", f"{zone}; relaybox stores UTC whatever it is")
    packet = facts.number("max_allowed_packet")
    if packet is not None and packet < 4 * 1024 * 1024:
        yield Finding(
            "warning", "max_allowed_packet", f"{packet:,.0f} bytes: large events and batches are refused", "set it to 16M"
        )
    for column, collation in facts.starting("collation.").items():
        if not collation.endswith("_bin"):
            yield Finding(
                "critical" if column == "event_id" else "warning",
                "collation",
                f"{column} compares with {collation}: texts that differ only in case or accents count as equal",
                "convert the column to utf8mb4_bin",
            )
    for table, engine in facts.starting("engine.").items():
        if engine.lower() != "innodb":
            yield Finding(
                "critical", "engine", f"{table} uses {engine}, which has no transactions", f"ALTER TABLE {table} ENGINE=InnoDB"
            )
    yield from (f for f in _ages(facts) if f.check == "transactions")
    yield from _headroom(facts.number("threads_connected"), facts.number("max_connections"))


def _binlog(facts: Facts) -> Iterator[Finding]:
    if facts.text("log_bin") not in ("on", "1"):
        return
    if facts.text("binlog_format") == "statement":
        yield Finding(
            "critical",
            "binlog_format",
            "the binary log is in STATEMENT format: claims (SKIP LOCKED, READ COMMITTED) are refused or diverge on replicas",
            "set binlog_format = ROW (or MIXED)",
        )
    else:
        yield Finding("ok", "binlog_format", facts.text("binlog_format") or "row")
    if facts.text("sync_binlog") not in (None, "1"):
        yield Finding(
            "warning",
            "sync_binlog",
            "sync_binlog is not 1: after a crash the binary log may lack commits that replicas need",
            "set sync_binlog = 1",
        )
