"""Every option of every sink and source is in the table of its page, and every row of a table is an option."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

import pytest
from doc_pages import ROOT

from relaybox.brokers import SINKS, SOURCES

GUIDES = ROOT / "docs" / "guides"
SINK_PAGES = {
    "kafka": "relay-kafka",
    "rabbitmq": "relay-rabbitmq",
    "nats": "relay-nats",
    "redis": "relay-redis",
    "pubsub": "relay-pubsub",
    "aws": "relay-sqs-sns",
    "webhook": "relay-webhooks",
    "lines": "relay-json-lines",
}
SOURCE_SECTIONS = {
    "kafka": "Apache Kafka",
    "rabbitmq": "RabbitMQ",
    "nats": "NATS JetStream",
    "redis": "Redis Streams",
    "pubsub": "Google Pub/Sub",
    "aws": "Amazon SQS",
}
FOR_TESTS = {"clock", "resolver"}


def loaded(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"relaybox.{module}"), name)


def keywords(kind: type) -> set[str]:
    arguments = inspect.signature(kind).parameters.values()
    return {argument.name for argument in arguments if argument.kind is argument.KEYWORD_ONLY} - FOR_TESTS


def section(page: str, title: str) -> str:
    _, found, rest = (GUIDES / f"{page}.md").read_text().partition(f"\n## {title}\n")
    assert found, f"{page}.md has no section {title}"
    return rest.partition("\n## ")[0]


def rows(text: str, heading: str) -> set[str]:
    """The options in the first column of the table whose first column has this heading."""
    table = re.search(rf"^\| {heading} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table, f"no table with the heading {heading!r}"
    return {name for row in table[1].splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}


@pytest.mark.parametrize("place", sorted({place for place in SINKS.values() if place.startswith("brokers.")}))
def test_options_of_sinks(place: str) -> None:
    kind = loaded(place)
    text = section(SINK_PAGES[place.split(".")[1]], "Options")
    connection = getattr(kind, "connection_type", None)
    if connection is None:
        assert rows(text, "option") == keywords(kind)
        return
    only_in_python = {"credentials"}
    assert rows(text, "option of the connection") == keywords(connection) - only_in_python
    for name in only_in_python & keywords(connection):
        assert f"In Python, `{name}`" in text
    if own := keywords(kind):
        assert rows(text, "option of the sink") == own


@pytest.mark.parametrize("place", sorted(set(SOURCES.values())))
def test_options_of_sources(place: str) -> None:
    assert rows(section("ingest-sources", SOURCE_SECTIONS[place.split(".")[1]]), "option") == keywords(loaded(place))
