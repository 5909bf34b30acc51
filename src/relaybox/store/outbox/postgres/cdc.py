"""What keeps a connector from reading PostgreSQL's log, or endangers what it reads."""

from __future__ import annotations

from collections.abc import Iterator

from ....op import Op
from ...doctor import Finding, verdict
from ..store import OutboxStore

KEPT_WAL = 1 << 30


def judge(store: OutboxStore, facts: dict[str, str]) -> Op[list[Finding]]:
    slots = yield store.sql["cdc.slots"].bind()
    findings = [_slot(name, active, kept or 0, state) for name, active, kept, state in slots.rows]
    return [*_settings(facts, store), *findings]


def _settings(facts: dict[str, str], store: OutboxStore) -> Iterator[Finding]:
    level = facts.get("wal_level")
    ill = f"wal_level is {level}: the log cannot be decoded"
    fix = "ALTER SYSTEM SET wal_level = 'logical', then restart the server"
    yield verdict(level == "logical", "wal_level", "logical", "critical", ill, fix)
    role, may = facts["role"], facts["replication"] == "true"
    ill, fix = f"{role} may not read the log", f"ALTER ROLE {role} REPLICATION"
    yield verdict(may, "role", f"{role} may replicate", "critical", ill, fix)
    for used, limit in (("slots", "max_replication_slots"), ("senders", "max_wal_senders")):
        taken, most = int(facts[used]), int(facts[limit])
        ill, fix = f"all {most} are in use", f"raise {limit}, unless one is this connector's"
        yield verdict(taken < most, limit, f"{taken} of {most} in use", "warning", ill, fix)
    yield from _table(facts, store)
    yield from _publication(facts, store)
    if facts.get("max_slot_wal_keep_size") == "-1":
        yield Finding(
            "warning",
            "max_slot_wal_keep_size",
            "not limited: while the connector is away the server keeps all WAL, until the disk is full",
            "set it to what the disk can spare; beyond it the slot is lost, and the connector begins again",
        )


def _table(facts: dict[str, str], store: OutboxStore) -> Iterator[Finding]:
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


def _publication(facts: dict[str, str], store: OutboxStore) -> Iterator[Finding]:
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
