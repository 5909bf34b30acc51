"""`manage.py migrate` makes and upgrades the tables of relaybox, by relaybox's own numbered migrations.

A migration of Django's says when, in the order of all others, and after it whatever `RELAYBOX` names and is not there
yet is made: an inbox that was added to the settings needs no migration of Django's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from django.core.management.color import no_style
from django.db import connections, router, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.recorder import MigrationRecorder

from ...drivers.django import DjangoHandle
from ...drivers.rehearsal import Rehearsal
from ...op import run
from ...store.feeds.store import FeedStore
from ...store.schema import Schema
from ...store.topics.store import TopicStore
from ..tables import stores
from . import outbox
from .config import configured

APP = "relaybox"
FIRST = "0001_tables"


def stores_of(alias: str) -> Iterator[Schema]:
    """All that `RELAYBOX` and the routers want in this database."""
    config = configured()
    if alias not in config.databases:
        return
    for product, tables in config.tables():
        if router.allow_migrate(alias, APP, product=product, table=tables.event):
            yield from stores(product, DjangoHandle(connections[alias]).dialect, tables)


class Upgrade(Operation):
    """Create or upgrade the tables. Names the newest numbered migrations it was written for; those of this release are
    applied, whichever that is."""

    reduces_to_sql = True
    reversible = False

    def __init__(self, **newest: int) -> None:
        self.newest = newest

    def state_forwards(self, app_label: str, state: Any) -> None:
        """No models: the tables are not Django's."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        alias = schema_editor.connection.alias
        if schema_editor.collect_sql:
            rehearsal = Rehearsal(None)
            for store in stores_of(alias):
                run(store.migrate_unseen(), rehearsal)
            for text in rehearsal.texts:
                schema_editor.execute(text, params=None)
        else:
            upgrade(alias)

    def describe(self) -> str:
        versions = ", ".join(f"{product} {version:03}" for product, version in self.newest.items())
        return f"Create or upgrade the tables of relaybox: {versions}"

    @property
    def migration_name_fragment(self) -> str:
        return "tables"


def upgrade(alias: str, *, told: bool = False) -> None:
    """`told`: say what was applied."""
    for store in stores_of(alias):
        connection: Any = connections[alias]
        if not run(store.plan(), DjangoHandle(connection)):  # which needs no lock
            continue
        with transaction.atomic(using=alias):
            for applied in run(store.migrate(), DjangoHandle(connection)):
                if told:
                    sys.stdout.write(f"  Applied {store.tables.event} {applied.version:03} {applied.name}\n")


def after_migrate(using: str, verbosity: int = 1, **_: Any) -> None:
    """Django has migrated or flushed this database."""
    module, _explicit = MigrationLoader.migrations_module(APP)
    if module is None or (APP, FIRST) in MigrationRecorder(connections[using]).applied_migrations():
        upgrade(using, told=verbosity > 0)


# -- flush ------------------------------------------------------------------------------------------

KEPT = ("turn", "meta")  # rows that migrations make


def empty(alias: str) -> None:
    """All rows of all tables, and topics with their logs."""
    connection, names = connections[alias], set[str]()
    for store in stores_of(alias):
        if not run(store.applied(), DjangoHandle(connection)):
            continue
        if isinstance(store, TopicStore):
            _drop_topics(alias)
        elif not isinstance(store, FeedStore):
            kept = {store.tables.part(part) for part in KEPT}
            names |= {_qualified(store, table) for table in {table for table, _ in store.expected_columns()} - kept}
    if names:
        connection.ops.execute_sql_flush(connection.ops.sql_flush(no_style(), sorted(names)))


def _qualified(store: Schema, table: str) -> str:
    """As Django quotes it."""
    schema, quote = store.tables.schema, store.quote
    return table if schema is None else f"{quote}{schema}{quote}.{quote}{table}{quote}"


def _drop_topics(alias: str) -> None:
    box = outbox(alias)
    for feed in box.feeds.list():
        box.feeds.drop(feed.name, reason="flush")
    for group in box.topics.groups():
        box.topics.group(group.topic, group.group).cancel(reason="flush")
    for found in box.topics.list():
        box.topics.drop(found.topic.name, reason="flush")
