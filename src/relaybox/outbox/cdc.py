"""Change data capture: how Debezium's outbox event router reads what `Outbox(cdc=True)` writes.

    document = connector("postgresql://connect@db/shop", name="shop-outbox", topic_prefix="shop")

The document is what Kafka Connect takes at POST /connectors. Consumers cannot tell its messages from those of a relay
to Kafka: the same key, the same bytes, the same header names. Only the writer's own headers stay together, as JSON in
one header, since a router can place columns and nothing finer.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from string import Formatter
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from ..drivers import parse, resolved
from ..errors import ConfigError
from ..store.names import Tables
from ..store.outbox import OutboxStore, open_store
from ..transport import split_url, tls_of

RouteBy: TypeAlias = Literal["aggregate_type", "event_type"]

PASSWORD_VARIABLE = "OUTBOX_DB_PASSWORD"  # noqa: S105 - the name of a variable
KAFKA_VARIABLE = "KAFKA_BOOTSTRAP_SERVERS"

# Columns that become headers, by the names a relay gives them.
HEADERS = {
    "event_id": "event_id",
    "event_type": "event_type",
    "aggregate_type": "aggregate_type",
    "aggregate_id": "aggregate_id",
    "created_at": "created_at",
    "tenant_id": "tenant",
    "content_type": "content-type",
    "headers": "headers",
}
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_STRING = "org.apache.kafka.connect.storage.StringConverter"


def connector(
    url: str,
    tables: Tables | None = None,
    *,
    name: str,
    topic_prefix: str,
    route_by: RouteBy = "aggregate_type",
    topic: str | None = None,
    password_variable: str = PASSWORD_VARIABLE,
    kafka: str | None = None,
) -> dict[str, Any]:
    """
    url                the database as Kafka Connect reaches it; of the password only the variable's name is told
    topic              "{topic_prefix}.{aggregate_type}" unless given: a template with the column of `route_by`, or
                       one topic for all
    password_variable  the worker's environment variable with the password
    kafka              MySQL, MariaDB: brokers that keep the history of the schema; else they are in a variable too
    """
    if not name:
        raise ConfigError("expected the connector to have a name")
    if not _TOPIC.fullmatch(topic_prefix):
        raise ConfigError(f"expected the topic prefix to be letters, digits, '.', '_' and '-', got {topic_prefix!r}")
    parts = urlsplit(resolved(url))
    dialect = parse(url).dialect
    if dialect == "sqlite":
        raise ConfigError("SQLite has no log that others could read: use a relay, or PostgreSQL or MySQL")
    if not parts.hostname:
        raise ConfigError("expected a host in the database URL: Kafka Connect reaches the database by TCP")
    database = unquote(parts.path.lstrip("/"))
    if not database:
        raise ConfigError("expected the database URL to name a database, such as postgresql://db/shop")
    tables = tables or Tables()
    schema = tables.schema or ("public" if dialect == "postgres" else database)
    table = f"{schema}.{tables.event}"
    store = open_store(dialect, Tables(tables.event, schema))
    config = {
        "tasks.max": "1",
        "database.hostname": parts.hostname,
        "database.port": str(parts.port or (5432 if dialect == "postgres" else 3306)),
        "database.user": unquote(parts.username or ""),
        "database.password": variable(password_variable),
        "topic.prefix": topic_prefix,
        "table.include.list": re.escape(table),
        # After a lost slot or an expired log: everything that is still in the table again, rather than a gap.
        "snapshot.mode": "when_needed",
        "snapshot.select.statement.overrides": table,
        f"snapshot.select.statement.overrides.{table}": store.sql["cdc.snapshot"].text,
        "time.precision.mode": "isostring",
        "skipped.operations": "u,d,t",
        "tombstones.on.delete": "false",
        "extended.headers.enabled": "false",
        "topic.creation.default.partitions": "-1",
        "topic.creation.default.replication.factor": "-1",
        "heartbeat.interval.ms": "10000",
        "key.converter": _STRING,
        "header.converter": _STRING,
        "value.converter": "io.debezium.converters.BinaryDataConverter",
        "value.converter.delegate.converter.type": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.delegate.converter.type.schemas.enable": "false",
        **router(route_by, topic or f"{topic_prefix}.{{{route_by}}}"),
    }
    if dialect == "postgres":
        config |= _postgres(store, name, database, parts)
    else:
        config |= _mysql(name, schema, topic_prefix, kafka or variable(KAFKA_VARIABLE), parts)
    return {"name": name, "config": dict(sorted(config.items()))}


def router(route_by: RouteBy, topic: str) -> dict[str, str]:
    """Which column is what to io.debezium.transforms.outbox.EventRouter."""
    if route_by not in get_args(RouteBy):
        raise ConfigError(f"expected route_by to be one of {', '.join(get_args(RouteBy))}, got {route_by!r}")
    options = {
        "type": "io.debezium.transforms.outbox.EventRouter",
        "table.field.event.id": "event_id",
        "table.field.event.key": "aggregate_id",
        "table.field.event.payload": "payload",
        "table.fields.additional.placement": ",".join(f"{column}:header:{name}" for column, name in HEADERS.items()),
        "route.by.field": route_by,
        "route.topic.replacement": _replacement(route_by, topic),
    }
    return {"transforms": "outbox", **{f"transforms.outbox.{option}": value for option, value in options.items()}}


def _replacement(route_by: str, topic: str) -> str:
    try:
        pieces = [(text, field) for text, field, _, _ in Formatter().parse(topic)]
    except ValueError as error:
        raise ConfigError(f"the topic {topic!r} is not a template: {error}") from None
    fields = {field for _, field in pieces} - {None}
    if fields - {route_by}:
        raise ConfigError(
            f"expected no other field than {{{route_by}}} in the topic {topic!r}: events are routed by it"
        )
    if not _TOPIC.fullmatch("".join(text + ("x" if field else "") for text, field in pieces)):
        raise ConfigError(f"{topic!r} is no name of a Kafka topic: letters, digits, '.', '_' and '-', up to 249")
    return "".join(text + ("${routedByValue}" if field else "") for text, field in pieces)


def _postgres(store: OutboxStore, name: str, database: str, parts: SplitResult) -> dict[str, str]:
    _, options, rest = split_url(urlunsplit(parts), {})
    said = {key: rest[key] for key in ("sslmode", "sslrootcert") if key in rest}
    if mode := tls_of(options).mode:
        said = {"sslmode": {"verify": "verify-full", "require": "require", "off": "disable"}[mode]}
    if "ca_file" in options:
        said["sslrootcert"] = options["ca_file"]
    tls = {f"database.{key}": value for key, value in said.items()}
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.dbname": database,
        "binary.handling.mode": "bytes",  # the only one that MySQL and MariaDB have
        "plugin.name": "pgoutput",
        "publication.name": f"{store.tables.event}_cdc",
        "publication.autocreate.mode": "disabled",
        "slot.name": re.sub(r"[^a-z0-9_]", "_", name.lower())[:63],
        "heartbeat.action.query": store.sql["cdc.heartbeat"].text,
        "message.prefix.exclude.list": r"relaybox\.heartbeat",
        **tls,
    }


def _mysql(name: str, database: str, topic_prefix: str, kafka: str, parts: SplitResult) -> dict[str, str]:
    product = "mariadb.MariaDb" if is_mariadb(parts.scheme) else "mysql.MySql"
    return {
        "connector.class": f"io.debezium.connector.{product}Connector",
        "database.include.list": re.escape(database),
        "database.server.id": str(10_000 + zlib.crc32(name.encode()) % 4_000_000_000),
        "include.schema.changes": "false",
        "schema.history.internal.kafka.bootstrap.servers": kafka,
        "schema.history.internal.kafka.topic": f"{topic_prefix}.schema-history",
        "schema.history.internal.store.only.captured.tables.ddl": "true",
    }


def is_mariadb(scheme: str) -> bool:
    """Debezium has a connector of its own for it."""
    return scheme.partition("+")[0] == "mariadb"


def variable(name: str) -> str:
    """What Kafka Connect's EnvVarConfigProvider replaces, in the worker."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ConfigError(f"expected the name of an environment variable, got {name!r}")
    return f"${{env:{name}}}"


def as_properties(document: Mapping[str, Any]) -> str:
    """The same for connect-standalone.sh. In properties a backslash escapes."""
    lines = {"name": document["name"], **document["config"]}
    return "".join("{}={}\n".format(key, value.replace("\\", "\\\\")) for key, value in lines.items())
