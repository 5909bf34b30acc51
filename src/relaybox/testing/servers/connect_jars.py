"""The jars of Kafka Connect with Debezium's connectors: where they lie, and how Maven fetches them."""

from __future__ import annotations

from pathlib import Path

from .kafka_jars import LOGGING_VERSION, VERSION, cache_folder, fetch_with_maven, pom

DEBEZIUM_VERSION = "3.5.0.Final"
POM = pom(
    "connect-jars",
    ("org.apache.kafka", "connect-runtime", VERSION),
    ("io.debezium", "debezium-connector-postgres", DEBEZIUM_VERSION),
    ("io.debezium", "debezium-connector-mariadb", DEBEZIUM_VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", LOGGING_VERSION),
)


def connect_jar_folder() -> Path:
    return cache_folder() / f"connect-{VERSION}-debezium-{DEBEZIUM_VERSION}"


def has_connect_jars(folder: Path) -> bool:
    return any(folder.glob("debezium-connector-postgres-*.jar"))


def fetch_connect_jars() -> Path:
    target = connect_jar_folder()
    if not has_connect_jars(target):
        fetch_with_maven(f"Debezium {DEBEZIUM_VERSION}", POM, target)
    return target
