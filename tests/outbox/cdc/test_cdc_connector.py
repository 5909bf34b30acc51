"""What is stored for other readers, and the configuration that describes it to Debezium."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from relaybox import Event, Outbox
from relaybox.cli.app import app
from relaybox.drivers import open_sync
from relaybox.errors import ConfigError
from relaybox.op import Query
from relaybox.outbox.cdc import HEADERS, as_properties, connector, router
from relaybox.store.event_rows import EVENT_COLUMNS
from relaybox.store.names import Tables
from relaybox.testing.servers import require

POSTGRES = "postgresql://connect:s3cret@db.internal:6543/shop?sslmode=verify-full&password=s3cret"
MARIADB = "mariadb://connect:s3cret@db.internal/shop"


def config(url: str = POSTGRES, tables: Tables | None = None, **options: Any) -> dict[str, str]:
    found: dict[str, str] = connector(url, tables, **{"name": "Shop-Outbox", "topic_prefix": "shop", **options})[
        "config"
    ]
    return found


def columns(url: str) -> list[tuple[Any, ...]]:
    with closing(open_sync(url)) as db, db.connection() as connection:
        query = "SELECT event_type, aggregate_type, content_type FROM outbox_event ORDER BY seq"
        return [tuple(row) for row in connection.execute(Query("test", query, "rows").bind()).rows]


@pytest.mark.parametrize("engine", ["sqlite", "postgres-wheel", "mariadb"])
@pytest.mark.parametrize("count", [1, 3])
def test_an_outbox_for_cdc_spells_out_what_others_store_as_null(engine: str, count: int, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db" if engine == "sqlite" else require(engine, durable=False).create_database()
    for cdc, expected in ((True, ("Plain", "__GLOBAL__", "application/json")), (False, ("Plain", None, None))):
        with Outbox(url, cdc=cdc) as box:
            box.migrate()
            with box.transaction() as tx:
                events = [Event("Plain", {"n": n}) for n in range(count)]
                box.write_all(tx, events)
                named = Event("Named", b"\x00", aggregate_type="Order")
                box.write(tx, named)
            assert all(box.resolve([event.id for event in (*events, named)]).values())
        assert columns(url)[-count - 1 :] == [expected] * count + [("Named", "Order", "application/octet-stream")]


def test_the_router_is_told_columns_that_exist() -> None:
    options = router("aggregate_type", "shop.{aggregate_type}")
    named = {
        value for option, value in options.items() if ".table.field." in option or option.endswith("route.by.field")
    }
    placed = {part.split(":")[0] for part in options["transforms.outbox.table.fields.additional.placement"].split(",")}
    assert named == {"event_id", "aggregate_id", "payload", "aggregate_type"}
    assert placed == set(HEADERS)
    assert named | placed <= set(EVENT_COLUMNS)


def test_postgresql() -> None:
    made = config(tables=Tables("Box", "sales"))
    assert made["database.hostname"] == "db.internal"
    assert made["database.port"] == "6543"
    assert made["database.sslmode"] == "verify-full"
    made = config("postgresql://connect@db.internal/shop?tls=verify&ca_file=/etc/ca.pem")
    assert (made["database.sslmode"], made["database.sslrootcert"]) == ("verify-full", "/etc/ca.pem")
    made = config(tables=Tables("Box", "sales"))
    assert made["slot.name"] == "shop_outbox"
    assert made["publication.name"] == "Box_cdc"
    assert made["table.include.list"] == r"sales\.Box"
    assert made["snapshot.select.statement.overrides.sales.Box"] == 'SELECT * FROM "sales"."Box" ORDER BY seq'


def test_mysql_and_mariadb() -> None:
    made = config(MARIADB)
    assert made["connector.class"] == "io.debezium.connector.mariadb.MariaDbConnector"
    assert made["table.include.list"] == r"shop\.outbox_event"
    assert made["schema.history.internal.kafka.bootstrap.servers"] == "${env:KAFKA_BOOTSTRAP_SERVERS}"
    mysql = config(MARIADB.replace("mariadb", "mysql+pymysql"), kafka="kafka:9092", name="other")
    assert mysql["connector.class"] == "io.debezium.connector.mysql.MySqlConnector"
    assert mysql["schema.history.internal.kafka.bootstrap.servers"] == "kafka:9092"
    assert 0 < int(mysql["database.server.id"]) < 2**32
    assert mysql["database.server.id"] != made["database.server.id"]


@pytest.mark.parametrize("url", [POSTGRES, MARIADB])
def test_no_password_is_told(url: str) -> None:
    document = connector(url, name="shop", topic_prefix="shop", password_variable="DB_PASSWORD")
    assert document["config"]["database.password"] == "${env:DB_PASSWORD}"
    assert "s3cret" not in json.dumps(document) + as_properties(document)


@pytest.mark.parametrize(
    ("route_by", "topic", "replacement"),
    [
        ("aggregate_type", None, "shop.${routedByValue}"),
        ("event_type", None, "shop.${routedByValue}"),
        ("event_type", "all-{event_type}.v1", "all-${routedByValue}.v1"),
        ("aggregate_type", "everything", "everything"),
    ],
)
def test_topics(route_by: str, topic: str | None, replacement: str) -> None:
    made = config(route_by=route_by, topic=topic)
    assert made["transforms.outbox.route.by.field"] == route_by
    assert made["transforms.outbox.route.topic.replacement"] == replacement


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"url": "sqlite:///shop.db"}, "SQLite has no log"),
        ({"url": "postgresql:///shop"}, "expected a host"),
        ({"url": "postgresql://db"}, "name a database"),
        ({"url": "mysql://db/my-shop"}, "my-shop"),
        ({"name": ""}, "a name"),
        ({"topic_prefix": "shop events"}, "'shop events'"),
        ({"route_by": "tenant_id"}, "aggregate_type, event_type, got 'tenant_id'"),
        ({"topic": "shop.{event_type}"}, "no other field than {aggregate_type}"),
        ({"topic": "shop.{}"}, "no other field than {aggregate_type}"),
        ({"topic": "shop/{aggregate_type}"}, "no name of a Kafka topic"),
        ({"topic": "$1{aggregate_type}"}, "no name of a Kafka topic"),
        ({"topic": "shop.{aggregate_type"}, "is not a template"),
        ({"password_variable": "no such:thing"}, "'no such:thing'"),
    ],
)
def test_what_cannot_be_configured(wrong: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        config(**wrong)


def test_the_command_prints_both_forms() -> None:
    def run(*options: str, code: int = 0) -> str:
        command = ["cdc", "connector", "--name", "shop", "--topic-prefix", "shop", *options]
        result = CliRunner().invoke(app, command, env={"RELAYBOX_URL": POSTGRES})
        assert result.exit_code == code, result.output
        return result.output

    document = json.loads(run("--topic-template", "shop.events", "--schema", "sales", "--table", "box"))
    expected = connector(POSTGRES, Tables("box", "sales"), name="shop", topic_prefix="shop", topic="shop.events")
    assert document == expected
    properties = dict(line.split("=", 1) for line in run("--format", "properties").splitlines())
    assert properties["name"] == "shop"
    assert properties["table.include.list"] == r"public\\.outbox_event"  # a backslash escapes there
    assert "expected --format" in run("--format", "yaml", code=2)
    assert "expected route_by" in run("--route-by", "payload", code=1)
