"""Alembic: the tables of relaybox are made in a migration of yours, and autogenerate leaves them alone.

# env.py
from relaybox.contrib.alembic import include_object

context.configure(connection=connection, target_metadata=metadata, include_object=include_object)

# a migration
def upgrade():
    op.relaybox_upgrade()
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from alembic import context
from alembic.operations import MigrateOperation, Operations
from sqlalchemy.dialects.postgresql.base import ischema_names

from ..drivers import wrap
from ..drivers.rehearsal import Rehearsal
from ..drivers.sqlalchemy import dialect_of
from ..errors import ConfigError, NoTransaction
from ..op import run
from ..store.guard import GuardTables
from ..store.inbox import InboxTables
from ..store.names import Tables
from ..store.topics import open_topic_store
from ..store.vault import VaultTables
from .tables import ProductName, stores

__all__ = ["include_object"]

# -- autogenerate -----------------------------------------------------------------------------------

_PRODUCTS: dict[str, Callable[[str], Tables]] = {
    "outbox": Tables,
    "inbox": InboxTables,
    "guard": GuardTables,
    "vault": VaultTables,
}
_COLUMNS = {"version", "name", "checksum", "applied_at"}
_TOPICS = "_topic_migration"  # how the table of their migrations is called; those of logs have a number in their names
for _type in ("pg_snapshot", "xid8"):  # of PostgreSQL; SQLAlchemy would warn when it sees them
    ischema_names.setdefault(_type, type(_type.upper(), (sa.types.UserDefinedType,), {"cache_ok": True}))
_known: WeakKeyDictionary[object, dict[str | None, re.Pattern[str]]] = WeakKeyDictionary()  # by the run


def include_object(
    object: Any,
    name: str | None,
    type_: str,
    reflected: bool,
    compare_to: Any,
    *,
    connection: sa.Connection | None = None,
) -> bool:
    """For `context.configure(include_object=…)`: False for the tables of relaybox, those of topics that are made later
    too, whatever they are called and in whichever schema. Which those are says the database itself: each outbox and
    inbox there keeps a list of its migrations.

    `connection`: only where no env.py is run, as with `compare_metadata`; `functools.partial` fills it in.
    """
    if not reflected or type_ != "table":
        return True
    run, connection = _running() if connection is None else (object.metadata, connection)
    return not _is_ours(name, object.schema, run, connection)


def _running() -> tuple[object, sa.Connection]:
    """The run of env.py, and what it looks at."""
    try:
        run = context.get_context()
    except (NameError, AttributeError):  # none yet, or none any more
        run = None
    if run is None or run.connection is None:
        raise ConfigError(
            "no env.py runs here, which would say what to look at; pass partial(include_object, connection=connection)"
        )
    return run, run.connection


def _is_ours(name: str | None, schema: str | None, run: object, connection: sa.Connection) -> bool:
    known = _known.setdefault(run, {})
    if schema not in known:
        known[schema] = re.compile("|".join(_names(connection, schema)) or "(?!)")
    return known[schema].fullmatch(name or "") is not None


def _names(connection: sa.Connection, schema: str | None) -> Iterator[str]:
    """Patterns of what relaybox has made in a schema."""
    looking = sa.inspect(connection)
    for table in looking.get_table_names(schema=schema):
        if table.endswith("_migration") and {c["name"] for c in looking.get_columns(table, schema=schema)} == _COLUMNS:
            listed = sa.table(table, sa.column("version", sa.Integer), sa.column("name", sa.String), schema=schema)
            product = connection.scalar(sa.select(listed.c.name).where(listed.c.version == 1))
            if product == "topics":
                base = re.escape(table.removesuffix(_TOPICS))
                yield rf"{base}_(?:{'|'.join(_topic_parts())}|(?:log|mark|ack)_\d+(?:_\w+)?)"
            elif product == "feeds":
                base = table.removesuffix("_migration")
                yield rf"{re.escape(base)}(?:_\w+)?"
                feeds = sa.table(base, sa.column("relation", sa.Text), schema=schema)
                kept = connection.scalars(sa.select(feeds.c.relation))
                yield from (re.escape(name.rsplit(".", 1)[1].strip('"')) for name in kept)
            elif product == "replica":
                places = table.removesuffix("_migration")
                yield re.escape(places)
                yield re.escape(table)
                replicas = connection.scalars(
                    sa.select(sa.table(places, sa.column("kept", sa.Text), schema=schema).c.kept)
                )
                yield from (rf"{re.escape(_text(name))}(?:_replica)?" for name in replicas)
            elif product in _PRODUCTS:
                named = _PRODUCTS[product](table.removesuffix("_migration")).substitutions("")
                yield from {re.escape(text) for key, text in named.items() if key.endswith("_name")}


def _text(name: str | bytes) -> str:
    """MySQL keeps as bytes what must not be alike by its collation."""
    return name if isinstance(name, str) else name.decode()


def _topic_parts() -> Iterator[str]:
    tables = open_topic_store("postgres", Tables("t")).tables
    named = tables.substitutions("").items()
    return (re.escape(text.removeprefix("t_")) for key, text in named if key.endswith("_name") and text != "t")


# -- op.relaybox_upgrade() --------------------------------------------------------------------------

_written: WeakKeyDictionary[object, set[tuple[ProductName, Tables]]] = WeakKeyDictionary()  # into a script, by the run


@Operations.register_operation("relaybox_upgrade")
class RelayboxUpgrade(MigrateOperation):
    """`op.relaybox_upgrade()`: create or upgrade the tables of an outbox with its topics, an inbox, a guard or a vault,
    by their names; of the outbox `outbox_event` if none is named. What is up to date is left as it is.

    With `--sql` a script is written. On PostgreSQL it asks what there is when it is run; elsewhere it is for a database
    without these tables, and fails in one that has them.
    """

    def __init__(self, tables: Mapping[ProductName, Tables]) -> None:
        self.tables = tables

    @classmethod
    def relaybox_upgrade(
        cls,
        operations: Operations,
        *,
        outbox: str | None = None,
        inbox: str | None = None,
        guard: str | None = None,
        vault: str | None = None,
        schema: str | None = None,
    ) -> None:
        named: dict[ProductName, str | None] = {"outbox": outbox, "inbox": inbox, "guard": guard, "vault": vault}
        if not any(named.values()):
            named["outbox"] = "outbox_event"
        operations.invoke(cls({what: Tables(name, schema) for what, name in named.items() if name is not None}))


@Operations.implementation_for(RelayboxUpgrade)
def _upgrade(operations: Operations, asked: RelayboxUpgrade) -> None:
    if operations.get_context().as_sql:
        _write(operations, asked)
        return
    bind = operations.get_bind()
    handle = wrap(bind)
    assert not handle.is_async  # of an async engine Alembic gets a connection that looks synchronous
    if not handle.in_transaction():
        raise NoTransaction("op.relaybox_upgrade() needs a migration's transaction; call it outside autocommit_block()")
    if handle.dialect == "sqlite" and not _begun(bind):
        bind.exec_driver_sql("BEGIN IMMEDIATE")  # sqlite3 itself begins before INSERT only: half of it could stay
    for what, tables in asked.tables.items():
        for store in stores(what, handle.dialect, tables):
            run(store.migrate(), handle)


def _begun(bind: sa.Connection) -> bool:
    driver: Any = bind.connection.driver_connection
    return bool(driver.in_transaction)


def _write(operations: Operations, asked: RelayboxUpgrade) -> None:
    script, dialect = operations.get_context().impl, dialect_of(operations.get_context().dialect)
    written = _written.setdefault(operations.get_context(), set())
    for what, tables in asked.tables.items():
        title = f"-- relaybox: {what} {tables.event}"
        if (what, tables) in written:
            script.static_output(f"{title} is up to date by the statements above")
            continue
        written.add((what, tables))
        if dialect != "postgres":
            title += ", for a database without its tables. Where it has some, run this migration without --sql"
        script.static_output(title)
        rehearsal = Rehearsal(None)
        for store in stores(what, dialect, tables):
            run(store.migrate_unseen(), rehearsal)
        for text in rehearsal.texts:
            script.static_output(f"{text};")
