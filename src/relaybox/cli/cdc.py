"""`relaybox cdc`: a connector's configuration for change data capture, and whether the server is ready for it."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Annotated, cast
from urllib.parse import urlsplit

import typer

from ..errors import ConfigError
from ..outbox.cdc import PASSWORD_VARIABLE, RouteBy, as_properties, connector, is_mariadb
from ..outbox.cdc_check import examine
from ..outbox.doctor import Finding
from ..redaction import scrub
from ..store.outbox import open_store
from .connect import target_of
from .doctor import show_findings
from .options import Json
from .output import emit

app = typer.Typer(help="Let Debezium read the table of an Outbox(cdc=True): connector, check.", no_args_is_help=True)


@app.command("connector")
def connector_(
    context: typer.Context,
    name: Annotated[str, typer.Option(help="of the connector, and of its replication slot")],
    topic_prefix: Annotated[str, typer.Option(help="what its topics begin with")],
    route_by: Annotated[str, typer.Option(help="aggregate_type or event_type")] = "aggregate_type",
    topic_template: Annotated[
        str | None, typer.Option(help="such as 'shop.{aggregate_type}', or one topic for all [PREFIX.{ROUTE_BY}]")
    ] = None,
    password_env: Annotated[
        str, typer.Option(help="variable of the Kafka Connect worker with the password")
    ] = PASSWORD_VARIABLE,
    kafka: Annotated[
        str | None, typer.Option(help="MySQL, MariaDB: brokers for the schema's history [a variable of the worker]")
    ] = None,
    format: Annotated[str, typer.Option(help="json for Kafka Connect's REST interface, or properties")] = "json",
) -> None:
    """Print a connector's configuration. Connects to nothing; --url is the database as Kafka Connect reaches it."""
    if format not in ("json", "properties"):
        raise typer.BadParameter(f"expected --format to be json or properties, got {format!r}")
    target = target_of(context)
    document = connector(
        target.needed_url,
        target.tables,
        name=name,
        topic_prefix=topic_prefix,
        route_by=cast(RouteBy, route_by),
        topic=topic_template,
        password_variable=password_env,
        kafka=kafka,
    )
    if format == "json":
        emit(document)
    else:
        sys.stdout.write(as_properties(document))


@app.command("check")
def check(context: typer.Context, json: Json = False) -> None:
    """Whether a connector with this --url would work. Exit 1 when something critical is found, 0 with warnings."""
    target = target_of(context)
    url = target.needed_url
    with closing(target.database()) as database:
        store = open_store(database.dialect, target.tables)
        if database.dialect == "sqlite":
            raise ConfigError("SQLite has no log that others could read: use a relay, or PostgreSQL or MySQL")
        found = examine(database, store, mariadb=is_mariadb(urlsplit(url).scheme))
    show_findings(url, [Finding(f.level, f.check, scrub(f.text, url), f.fix) for f in found], json)
