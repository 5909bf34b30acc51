"""`relaybox grants`: the statements that give a role of the database what it needs, and no more."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ..drivers import Database
from ..errors import NotFound
from ..store.doctor import Finding
from ..store.grants import DatabaseRole, checked_role, granted
from ..store.grants.ops import compare, open_schemas, statements
from ..store.guard import open_guard_schema
from ..store.inbox import InboxTables, open_inbox_store
from ..store.names import Tables
from ..store.outbox import open_store
from ..store.schema import Schema
from ..store.topics import open_topic_store
from ..store.topics.store import TopicStore
from .connect import Target, target_of
from .options import Json
from .output import emit

Product = tuple[str, Schema, TopicStore | None]
GUARD = "relaybox_guard"


def grants(
    context: typer.Context,
    role: Annotated[DatabaseRole, typer.Argument(help="what it does")],
    to: Annotated[str, typer.Option("--to", metavar="NAME", help="the role of the database, which must exist")],
    json: Json = False,
) -> None:
    """Print the statements that grant a role what it needs. Nothing is changed: the owner of the tables runs them."""
    target = target_of(context)
    database = target.database()
    try:
        lines: list[str] = []
        for product, store, topics in products(target, database, role):
            lines += database.run(statements(product, store, topics, checked_role(role), to))
    finally:
        database.close()
    if not lines:
        raise NotFound("table", target.tables.event, f"there is nothing here for a {role}; see `relaybox migrate`")
    lines = list(dict.fromkeys(lines))
    emit({"role": role, "to": to, "sql": lines}) if json else sys.stdout.write("".join(f"{line};\n" for line in lines))


def products(target: Target, database: Database, role: str) -> list[Product]:
    """What a role has business with in this database: the outbox with its topics, inboxes, the marks of guards."""
    dialect, tables = database.dialect, target.tables
    inboxes = database.run(open_inbox_store(dialect, InboxTables()).names(), tx=False)
    topics = open_topic_store(dialect, tables) if dialect == "postgres" else None
    found: list[Product] = [
        ("outbox", open_store(dialect, tables), topics),
        *(("inbox", open_inbox_store(dialect, InboxTables(name, schema)), None) for name, schema in inboxes),
        ("guard", open_guard_schema(dialect, Tables(GUARD, tables.schema)), None),
    ]
    mine = [one for one in found if granted(one[0], role, dialect)]
    return [one for one in mine if database.run(one[1].applied(), tx=False)]


def examined(target: Target, database: Database, role: str) -> list[Finding]:
    """What the role of this session lacks for its job, or has too much."""
    found: list[Finding] = []
    if database.dialect != "postgres":
        return [Finding("warning", f"role {role}", f"privileges are not compared on {database.dialect}", "SHOW GRANTS")]
    for schema in database.run(open_schemas(database.dialect), tx=False):
        text = f"any role may make objects in schema {schema}, where this one looks for functions and operators"
        fix = f"REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC"
        found.append(Finding("warning", "search_path", text, fix))
    for product, store, topics in products(target, database, role):
        found += database.run(compare(product, store, topics, checked_role(role)), tx=False)
    return found
