"""`relaybox cdc check`: what keeps a connector from starting, or endangers what it reads.

Ask as the connector's own role. A look changes nothing; `critical` means that the connector stops or misses events.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TypeAlias

from ..drivers.spi import Runner
from ..errors import StoreError
from ..op import Op, run
from ..store.doctor import Finding
from ..store.sql_store import SqlOutboxStore

Facts: TypeAlias = dict[str, str]

KEPT_WAL = 1 << 30
DAY = 86_400


def examine(database: Runner, store: SqlOutboxStore, *, mariadb: bool = False) -> list[Finding]:
    """`mariadb`: which of the two connectors the URL asks for."""
    with database.connection() as connection:
        return run(checkup(store, mariadb=mariadb), connection)


def checkup(store: SqlOutboxStore, *, mariadb: bool = False) -> Op[list[Finding]]:
    answer = yield store.sql["cdc.facts"].bind()
    facts = {str(name).lower(): str(value) for name, value in answer.rows}
    if store.dialect == "postgres":
        findings = [*_postgres(facts, store)]
        slots = yield store.sql["cdc.slots"].bind()
        for name, active, kept, state in slots.rows:
            findings.append(_slot(name, active, kept or 0, state))
    else:
        privileges = yield store.sql["cdc.privileges"].bind()
        findings = [*_mysql(facts, {row[0].upper() for row in privileges.rows}, mariadb)]
    with suppress(StoreError):  # no table yet, or none that this role may read: said above
        unroutable = yield store.sql["cdc.unroutable"].bind()
        findings.append(_routes(int(unroutable.rows[0][0])))
    return findings


def _postgres(facts: Facts, store: SqlOutboxStore) -> Iterator[Finding]:
    level = facts.get("wal_level")
    yield (
        Finding("ok", "wal_level", "logical")
        if level == "logical"
        else Finding(
            "critical",
            "wal_level",
            f"wal_level is {level}: the log cannot be decoded",
            "ALTER SYSTEM SET wal_level = 'logical', then restart the server",
        )
    )
    role = facts["role"]
    yield (
        Finding("ok", "role", f"{role} may replicate")
        if facts["replication"] == "true"
        else Finding("critical", "role", f"{role} may not read the log", f"ALTER ROLE {role} REPLICATION")
    )
    for used, limit in (("slots", "max_replication_slots"), ("senders", "max_wal_senders")):
        taken, most = int(facts[used]), int(facts[limit])
        yield (
            Finding("ok", limit, f"{taken} of {most} in use")
            if taken < most
            else Finding("warning", limit, f"all {most} are in use", f"raise {limit}, unless one is this connector's")
        )
    yield from _table(facts, store)
    yield from _publication(facts, store)
    if facts.get("max_slot_wal_keep_size") == "-1":
        yield Finding(
            "warning",
            "max_slot_wal_keep_size",
            "not limited: while the connector is away the server keeps all WAL, until the disk is full",
            "set it to what the disk can spare; beyond it the slot is lost, and the connector begins again",
        )


def _table(facts: Facts, store: SqlOutboxStore) -> Iterator[Finding]:
    event, schema, role = store.tables.event, facts.get("table.schema"), facts["role"]
    wanted = store.tables.schema or "public"
    if schema is None:
        yield Finding("critical", "table", f"there is no table {event!r}", "run `relaybox migrate`")
    elif schema != wanted:
        yield Finding(
            "critical", "table", f"{event!r} is in schema {schema!r}, not {wanted!r}", f"use --schema {schema}"
        )
    elif facts["table.select"] != "true":
        yield Finding(
            "critical", "table", f"{role} may not read {event!r}", f"GRANT SELECT ON {schema}.{event} TO {role}"
        )
    else:
        yield Finding("ok", "table", f"{schema}.{event}")


def _publication(facts: Facts, store: SqlOutboxStore) -> Iterator[Finding]:
    name, make = f"{store.tables.event}_cdc", store.sql["cdc.publication"].text
    kinds = facts.get("publication", "").split(",")
    tables = {fact.rpartition(".")[2] for fact in facts if fact.startswith("published.")}
    if "insert" not in kinds or store.tables.event.lower() not in tables:
        yield Finding("critical", "publication", f"no publication {name!r} has the inserts of the event table", make)
    elif kinds != ["insert"] or len(tables) > 1:
        yield Finding(
            "warning",
            "publication",
            f"{name!r} has more than the inserts of the event table: every purge goes through the slot too",
            f"drop it, then {make}",
        )
    else:
        yield Finding("ok", "publication", name)


def _slot(name: str, active: bool, kept: int, state: str | None) -> Finding:
    size = f"{kept / (1 << 20):,.0f} MiB"
    if state == "lost":
        text = f"{name} lost WAL it needed: what was written meanwhile did not go out"
        return Finding(
            "critical",
            "slot",
            text,
            f"drop it with pg_drop_replication_slot('{name}'); the connector then starts anew from the table",
        )
    if not active:
        text = f"nobody reads {name}, and the server keeps {size} of WAL for it"
        return Finding("warning", "slot", text, "start its connector, or drop the slot if there is none any more")
    if kept > KEPT_WAL or state == "unreserved":
        return Finding(
            "warning", "slot", f"{name} is {size} of WAL behind", "see whether its connector and Kafka are well"
        )
    return Finding("ok", "slot", f"{name} is read and {size} of WAL behind")


def _mysql(facts: Facts, privileges: set[str], mariadb: bool) -> Iterator[Finding]:
    server = "mariadb" in facts["version"].lower()
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
        yield (
            Finding("ok", name, f"{name} = {value}")
            if value == good
            else Finding("critical", name, f"{name} is {value}", f"set {name} = {good}")
        )
    needed = {
        "REPLICATION SLAVE": ("REPLICATION SLAVE",),
        "REPLICATION CLIENT": ("REPLICATION CLIENT", "BINLOG MONITOR"),
    }
    missing = [name for name, one_of in needed.items() if not privileges.intersection(one_of)]
    yield (
        Finding("ok", "role", "may read the binary log")
        if not missing
        else Finding(
            "warning",
            "role",
            f"the account itself lacks {' and '.join(missing)}",
            f"GRANT {', '.join(missing)} ON *.* to it, unless it has that from a role",
        )
    )
    kept = float(facts.get("binlog_expire_logs_seconds", 0)) or DAY * float(facts.get("expire_logs_days", 0))
    yield (
        Finding(
            "warning",
            "retention",
            f"the binary log is kept for {kept:,.0f} s: a connector away for longer starts anew from the table",
            "raise binlog_expire_logs_seconds",
        )
        if 0 < kept < DAY
        else Finding(
            "ok", "retention", f"the binary log is kept for {kept / DAY:,.0f} days" if kept else "never purged"
        )
    )


def _routes(unroutable: int) -> Finding:
    if unroutable:
        return Finding(
            "critical",
            "routes",
            f"{unroutable} of the newest 1,000 events have no aggregate type: routing by it stops the connector there",
            "write to this table with writer_only alone, or make the connector with --route-by event_type",
        )
    return Finding("ok", "routes", "the newest events can be routed")
