"""Writes docs/reference/sinks.md from what the sinks declare; `--check` only compares."""

from __future__ import annotations

import sys
from typing import Any

from generated import write_or_check

from relaybox.brokers import sink_from_url
from relaybox.durations import format_duration
from relaybox.spi import Features, Sink

HEAD = """# Sinks

Written by `scripts/sinks_page.py` from what the sinks declare; do not edit.

| sink | URL | order of a key | drops repeated ids | keys in sequence | per publish \
| largest message | outage of | tombstones |
|---|---|---|---|---|---|---|---|---|
"""
TAIL = """
- **order of a key**: the broker keeps it. The relay sends the next event of a key only when the one before is
  acknowledged.
- **drops repeated ids**: the broker itself, within the time given. Elsewhere a
  [guard](../guides/idempotent-consumers.md) does it at the consumer.
- **keys in sequence**: several events of a key may share one publish, because none is accepted behind one that failed.
  It makes a difference where few keys have many events.
- **outage of**: whether a broker that is away stops the sink, or an endpoint only itself.
- **tombstones**: messages without a body, for topics that keep the last one of each key; relays of
  [feeds](../guides/feed-to-kafka.md) send them.

A sink of your own implements `relaybox.brokers.Sink` and passes `relaybox.testing.sink_contract.SinkContract`, as these
do.
"""

# Name and guide, a URL, options without which the sink is not made.
SINKS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("Apache Kafka", "kafka", "kafka://host:9092", {}),
    ("RabbitMQ", "rabbitmq", "amqp://host", {}),
    ("NATS JetStream", "nats", "nats://host", {}),
    ("Redis Streams", "redis", "redis://host", {}),
    ("Google Pub/Sub", "pubsub", "pubsub://project", {"emulator_host": "localhost:1"}),
    ("Amazon SQS, FIFO queues", "sqs-sns", "sqs://region", {"fifo": True}),
    ("Amazon SQS, standard queues", "sqs-sns", "sqs://region", {"fifo": False}),
    ("Amazon SNS, FIFO topics", "sqs-sns", "sns://region", {"fifo": True}),
    ("Amazon SNS, standard topics", "sqs-sns", "sns://region", {"fifo": False}),
    ("Webhooks", "webhooks", "https://host", {"insecure_unsigned": True}),
    ("another database's inbox", "inbox", "inbox+sqlite:///other.db", {}),
    ("JSON lines", "json-lines", "jsonl://-", {}),
]


def row(name: str, guide: str, url: str, sink: Sink) -> str:
    declared: Features = sink.features
    if not declared.dedup:
        dedup = "no"
    else:
        dedup = "for ever" if declared.dedup_window is None else format_duration(declared.dedup_window)
    cells = [
        f"[{name}](../guides/relay-{guide}.md)",
        f"`{url.partition(':')[0]}:`",
        "yes" if declared.keyed_order else "no",
        dedup,
        "yes" if declared.sequences else "no",
        f"{declared.batch:,}",
        "the broker's limit" if declared.max_bytes is None else f"{declared.max_bytes:,} B",
        "one destination" if declared.by_destination else "the sink",
        "yes" if declared.tombstones else "no",
    ]
    return "| " + " | ".join(cells) + " |\n"


def text() -> str:
    rows = [row(name, guide, url, sink_from_url(url, options)) for name, guide, url, options in SINKS]
    return HEAD + "".join(rows) + TAIL


if __name__ == "__main__":
    sys.exit(write_or_check("sinks.md", text()))
