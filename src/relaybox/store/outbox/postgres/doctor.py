"""What PostgreSQL's settings and sessions mean for delivery."""

from __future__ import annotations

from collections.abc import Iterator

from ...doctor import Circumstances, Facts, Finding, Switch, Vitals, judge_ages, judge_headroom, judge_switches, verdict

_SWITCHES: tuple[Switch, ...] = (
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


def judge(seen: Vitals, around: Circumstances) -> Iterator[Finding]:
    facts = Facts(seen)
    number = facts.number("server_version_num")
    if number is not None:
        shown = facts.text("server_version") or ""
        ill = f"PostgreSQL {shown} is older than 14"
        yield verdict(number >= 140000, "version", f"PostgreSQL {shown}", "critical", ill, "upgrade the server")
    yield from judge_switches(facts, _SWITCHES)
    if facts.text("in_recovery") == "true":
        yield Finding(
            "critical", "primary", "this server is a standby: nothing can be written", "use the primary's URL"
        )
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
        ill = f"the database's encoding is {encoding.upper()}: events with characters it lacks are refused"
        yield verdict(encoding == "utf8", "encoding", "UTF8", "warning", ill, "use a UTF8 database")
    yield from _pooler(facts, around.announced_pid)
    yield from judge_ages(facts)
    yield from _pending_bloat(facts)
    yield from judge_headroom(facts.number("connections"), facts.number("max_connections"))


def _pooler(facts: Facts, announced_pid: int | None) -> Iterator[Finding]:
    pid = facts.number("backend_pid")
    if announced_pid is None or pid is None:
        return
    ill = "there is a pooler in between: LISTEN does not work through it, so delivery polls"
    fix = "fine for writers; give delivering processes a direct URL, or set delivery.poll to the latency you want"
    yield verdict(int(pid) == announced_pid, "pooler", "connected to the server itself", "warning", ill, fix)


def _pending_bloat(facts: Facts) -> Iterator[Finding]:
    if facts.text("pending.autovacuum") == "off":
        yield Finding(
            "warning", "vacuum", "autovacuum is off for the pending table", "ALTER TABLE … RESET (autovacuum_enabled)"
        )
    dead, live = facts.number("pending.dead_tuples"), facts.number("pending.live_tuples")
    if dead is None or live is None:
        return
    ill = f"the pending table has {dead:,.0f} dead tuples for {live:,.0f} live ones: polls read past them"
    fix = "look for long transactions, then VACUUM the table"
    few = dead <= max(100_000, 2 * live)
    yield verdict(few, "dead tuples", f"{dead:,.0f} in the pending table", "warning", ill, fix)
