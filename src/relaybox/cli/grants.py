"""`relaybox grants`: the statements that give a role of the database what it needs, and no more."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from typing import Annotated, get_args

import typer

from ..drivers import Database
from ..errors import ConfigError, NotFound, SchemaMissing, StoreError
from ..store.doctor import Finding
from ..store.grants import DatabaseRole, checked_role, granted
from ..store.grants.ops import compare, open_databases, open_schemas, statements
from ..store.grants.tenants import FIX, examine, sees_all, tenants
from ..store.guard import open_guard_schema
from ..store.inbox import InboxTables, open_inbox_store
from ..store.names import Tables
from ..store.outbox import open_store
from ..store.schema import Schema
from ..store.topics import open_topic_store
from ..store.topics.store import TopicStore
from ..store.vault import open_vault_store
from .connect import Target, keys_table, target_of
from .options import Json
from .output import emit

Product = tuple[str, Schema, TopicStore | None]
GUARD = "relaybox_guard"
BINDABLE = ("writer", "receiver", "tenant")  # jobs that may be done for one tenant
WHOLE = {"outbox": "event", "inbox": "message"}  # by these a role that is bound to a tenant is known


def grants(
    context: typer.Context,
    to: Annotated[
        list[str], typer.Option("--to", metavar="NAME", help="the role of the database, which must exist; several go")
    ],
    role: Annotated[
        DatabaseRole | None, typer.Argument(metavar="ROLE", help=f"its job: {', '.join(get_args(DatabaseRole))}")
    ] = None,
    by_tenant: Annotated[
        bool, typer.Option("--tenants", help="row-level security: who is not named sees one tenant's rows alone")
    ] = False,
    json: Json = False,
) -> None:
    """Print the statements that grant a role what it needs. Nothing is changed: the owner of the tables runs them."""
    if by_tenant is (role is not None):
        raise ConfigError("expected a ROLE, or --tenants, which is about the rows and not about one role")
    target = target_of(context)
    lines: list[str] = []
    with closing(target.database()) as database:
        for product, store, topics in products(target, database, role or "operator"):
            if role is None:
                lines += database.run(tenants(product, store, topics, to))
                continue
            for name in to:
                lines += database.run(statements(product, store, topics, checked_role(role), name))
    if not lines:
        whom = f"a {role}" if role else "tenants"
        raise NotFound("table", target.tables.event, f"there is nothing here for {whom}; see `relaybox migrate`")
    lines = list(dict.fromkeys(lines))
    emit({"role": role, "to": to, "sql": lines}) if json else sys.stdout.write("".join(f"{line};\n" for line in lines))


def products(target: Target, database: Database, role: str) -> list[Product]:
    """What a role has business with in this database: the outbox with its topics, inboxes, marks of guards, keys."""
    mine = [one for one in _known(target, database) if granted(one[0], role, database.dialect)]
    return [one for one in mine if database.run(one[1].applied(), tx=False)]


def _known(target: Target, database: Database) -> list[Product]:
    """Also what is not there."""
    dialect, tables = database.dialect, target.tables
    inboxes = database.run(open_inbox_store(dialect, InboxTables()).names(), tx=False)
    topics = open_topic_store(dialect, tables) if dialect == "postgres" else None
    return [
        ("outbox", open_store(dialect, tables), topics),
        *(("inbox", open_inbox_store(dialect, InboxTables(name, schema)), None) for name, schema in inboxes),
        ("guard", open_guard_schema(dialect, Tables(GUARD, tables.schema)), None),
        ("vault", open_vault_store(dialect, Tables(keys_table(os.environ), tables.schema)), None),
    ]


def examined(target: Target, database: Database, role: str) -> list[Finding]:
    """What the role of this session lacks for its job, or has too much."""
    found: list[Finding] = []
    if database.dialect != "postgres":
        return [Finding("warning", f"role {role}", f"privileges are not compared on {database.dialect}", "SHOW GRANTS")]
    for schema in database.run(open_schemas(database.dialect), tx=False):
        text = f"any role may make objects in schema {schema}, where this one looks for functions and operators"
        fix = f"REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC"
        found.append(Finding("warning", "search_path", text, fix))
    for name in database.run(open_databases(database.dialect), tx=False) if target.tables.schema is None else ():
        text = f"any role may make schemas in database {name}, also one in which this role looks for the tables first"
        fix = f"REVOKE CREATE ON DATABASE {name} FROM PUBLIC, and name the schema of the tables (--schema)"
        found.append(Finding("warning", "search_path", text, fix))
    if role == "tenant" and not any(finding.level == "ok" for finding in secured(target, database)):
        text = "row-level security is not on: this role sees the rows of every tenant"
        found.append(Finding("critical", "tenants", text, FIX))
    for product, store, topics in products(target, database, role):
        found += database.run(compare(product, store, topics, checked_role(role)), tx=False)
        if role not in BINDABLE and product in WHOLE:
            found += _bound(database, store, WHOLE[product])
    return found


def _bound(database: Database, store: Schema, part: str) -> list[Finding]:
    try:
        database.run(sees_all(store, part), tx=False)
    except StoreError as bound:
        return [Finding("critical", "tenants", str(bound), FIX)]
    return []


def secured(target: Target, database: Database) -> list[Finding]:
    """What is missing of row-level security by tenant, where somebody has begun with it."""
    if database.dialect != "postgres":
        return []
    found: list[Finding] = []
    for one in _known(target, database):
        try:
            found += database.run(examine(*one), tx=False)
        except SchemaMissing:
            continue
        except StoreError as refused:
            found.append(Finding("warning", "tenants", f"row-level security was not looked at: {refused}"))
    return found
