"""What keeps a connector from reading the binary log of MySQL and MariaDB, or endangers what it reads."""

from __future__ import annotations

from collections.abc import Iterator

from ....op import Op
from ...doctor import Finding, verdict
from ..store import OutboxStore

DAY = 86_400


def judge(store: OutboxStore, facts: dict[str, str]) -> Op[list[Finding]]:
    privileges = yield store.sql["cdc.privileges"].bind()
    return [*_settings(facts, {row[0].upper() for row in privileges.rows})]


def _settings(facts: dict[str, str], privileges: set[str]) -> Iterator[Finding]:
    server, mariadb = "mariadb" in facts["version"].lower(), facts["connector"] == "mariadb"
    if server != mariadb:
        names = ("MySQL", "MariaDB")
        yield Finding(
            "critical",
            "server",
            f"this is {names[server]}, and the URL asks for the connector of {names[mariadb]}",
            f"begin the URL with {names[server].lower()}://",
        )
    for name, good in (("log_bin", "ON"), ("binlog_format", "ROW"), ("binlog_row_image", "FULL")):
        value = facts.get(name)
        is_set = f"{name} = {value}"
        yield verdict(value == good, name, is_set, "critical", f"{name} is {value}", f"set {name} = {good}")
    needed = {
        "REPLICATION SLAVE": ("REPLICATION SLAVE",),
        "REPLICATION CLIENT": ("REPLICATION CLIENT", "BINLOG MONITOR"),
    }
    missing = [name for name, one_of in needed.items() if not privileges.intersection(one_of)]
    ill = f"the account itself lacks {' and '.join(missing)}"
    fix = f"GRANT {', '.join(missing)} ON *.* to it, unless it has that from a role"
    yield verdict(not missing, "role", "may read the binary log", "warning", ill, fix)
    kept = float(facts.get("binlog_expire_logs_seconds", 0)) or DAY * float(facts.get("expire_logs_days", 0))
    well = f"the binary log is kept for {kept / DAY:,.0f} days" if kept else "never purged"
    ill = f"the binary log is kept for {kept:,.0f} s: a connector away for longer starts anew from the table"
    yield verdict(not 0 < kept < DAY, "retention", well, "warning", ill, "raise binlog_expire_logs_seconds")
