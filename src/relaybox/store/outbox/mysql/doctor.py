"""What MySQL's and MariaDB's settings mean for delivery."""

from __future__ import annotations

from collections.abc import Iterator

from ...dialect import MYSQL
from ...doctor import (
    Circumstances,
    Facts,
    Finding,
    Switch,
    Vitals,
    judge_ages,
    judge_headroom,
    judge_switches,
    verdict,
    version,
)

_SWITCHES: tuple[Switch, ...] = (
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


def judge(seen: Vitals, around: Circumstances) -> Iterator[Finding]:
    facts = Facts(seen)
    shown = facts.text("version") or ""
    product, oldest = MYSQL.product(shown)
    older = f"{product} {shown} is older than {'.'.join(map(str, oldest))}"
    yield verdict(version(shown) >= oldest, "version", f"{product} {shown}", "critical", older, "upgrade the server")
    yield from judge_switches(facts, _SWITCHES)
    yield from _binlog(facts)
    isolation = facts.text("transaction_isolation") or facts.text("tx_isolation")
    if isolation is not None:
        well = f"{isolation}; relaybox's own sessions use READ COMMITTED"
        ill = "the default is SERIALIZABLE: every read locks"
        yield verdict(isolation != "serializable", "isolation", well, "warning", ill, "use READ COMMITTED")
    zone = facts.text("time_zone")
    if zone is not None:
        yield Finding("ok", "time zone", f"{zone}; relaybox stores UTC whatever it is")
    packet = facts.number("max_allowed_packet")
    if packet is not None and packet < 4 * 1024 * 1024:
        yield Finding(
            "warning", "max_allowed_packet", f"{packet:,.0f} bytes: large events are refused", "set it to 16M"
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
                "critical", "engine", f"{table} uses {engine}, which has no transactions", "convert it to InnoDB"
            )
    yield from (f for f in judge_ages(facts) if f.check == "transactions")
    yield from judge_headroom(facts.number("threads_connected"), facts.number("max_connections"))


def _binlog(facts: Facts) -> Iterator[Finding]:
    if facts.text("log_bin") not in ("on", "1"):
        return
    format = facts.text("binlog_format") or "row"
    ill = "the binary log is in STATEMENT format: claims (SKIP LOCKED) are refused or diverge on replicas"
    fix = "set binlog_format = ROW (or MIXED)"
    yield verdict(format != "statement", "binlog_format", format, "critical", ill, fix)
    if facts.text("sync_binlog") not in (None, "1"):
        yield Finding(
            "warning",
            "sync_binlog",
            "sync_binlog is not 1: after a crash the binary log may lack commits that replicas need",
            "set sync_binlog = 1",
        )
