"""Brokers: a folder each, whose client library is imported only when it is used.

A package of your own can add one: an entry point named after the scheme of its URLs, in the group "relaybox.sinks" or
"relaybox.sources", that names a class with `from_url(url, options)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, cast
from urllib.parse import urlsplit

from ..errors import ConfigError
from ..words import did_you_mean
from .spi import Sink, Source

# Scheme of the URL: module and class.
SINKS: dict[str, str] = {
    **dict.fromkeys(("kafka", "kafkas"), "brokers.kafka.sink:KafkaSink"),
    **dict.fromkeys(("amqp", "amqps"), "brokers.rabbitmq.sink:RabbitMQSink"),
    **dict.fromkeys(("nats", "tls"), "brokers.nats.sink:NatsSink"),
    **dict.fromkeys(("redis", "rediss"), "brokers.redis.sink:RedisStreamSink"),
    "pubsub": "brokers.pubsub.sink:PubSubSink",
    "sqs": "brokers.aws.sqs_sink:SqsSink",
    "sns": "brokers.aws.sns_sink:SnsSink",
    **dict.fromkeys(("http", "https", "webhook"), "brokers.webhook.sink:WebhookSink"),
    **dict.fromkeys(("jsonl", "stdout", "file"), "brokers.lines.sink:JsonLinesSink"),
    "inbox": "relay.inbox_sink:InboxSink",  # inbox+postgresql://…, or any other database URL behind the plus
}
SOURCES: dict[str, str] = {
    **dict.fromkeys(("kafka", "kafkas"), "brokers.kafka.source:KafkaSource"),
    **dict.fromkeys(("amqp", "amqps"), "brokers.rabbitmq.source:RabbitMQSource"),
    **dict.fromkeys(("nats", "tls"), "brokers.nats.source:NatsSource"),
    **dict.fromkeys(("redis", "rediss"), "brokers.redis.source:RedisStreamSource"),
    "sqs": "brokers.aws.sqs_source:SqsSource",
    "pubsub": "brokers.pubsub.source:PubSubSource",
}


def sink_from_url(url: str, options: Mapping[str, Any] | None = None) -> Sink:
    """The sink a URL names, for configuration files and the command line."""
    return cast(Sink, _named("sink", SINKS, url).from_url(url, options or {}))


def source_from_url(url: str, options: Mapping[str, Any] | None = None) -> Source:
    """The source a URL names, for configuration files and the command line."""
    return cast(Source, _named("source", SOURCES, url).from_url(url, options or {}))


def _named(kind: str, ours: Mapping[str, str], url: str) -> Any:
    scheme = url.partition(":")[0].lower()
    if scheme.startswith("inbox+"):
        scheme = "inbox"
    added = entry_points(group=f"relaybox.{kind}s")
    if scheme not in ours and scheme not in added.names:
        known = ", ".join([*ours, *sorted(added.names)])
        hint = did_you_mean(scheme, [*ours, *added.names])
        raise ConfigError(f"unknown kind of {kind} {scheme!r}{hint or ';'} expected a URL that begins with {known}")
    try:
        urlsplit(url)
    except ValueError:
        raise ConfigError(f"the {scheme} URL of the {kind} cannot be read; expected {scheme}://host:port/…") from None
    if scheme not in ours:
        return added[scheme].load()
    module, _, name = ours[scheme].partition(":")
    return getattr(import_module(f"relaybox.{module}"), name)
