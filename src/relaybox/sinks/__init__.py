"""Sinks: one module per broker, each importing its client only when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from ..errors import ConfigError
from .formats import MessageFormat
from .spi import Answer, Features, Message, Sink

__all__ = ["SINKS", "Answer", "Features", "Message", "MessageFormat", "Sink", "sink_from_url"]

# Scheme of the URL: module and class.
SINKS: dict[str, tuple[str, str]] = {
    "kafka": ("kafka", "KafkaSink"),
    "kafkas": ("kafka", "KafkaSink"),
    "amqp": ("rabbitmq", "RabbitMQSink"),
    "amqps": ("rabbitmq", "RabbitMQSink"),
    "nats": ("nats", "NatsSink"),
    "tls": ("nats", "NatsSink"),
    "redis": ("redis_streams", "RedisStreamSink"),
    "rediss": ("redis_streams", "RedisStreamSink"),
    "pubsub": ("pubsub", "PubSubSink"),
    "sqs": ("sqs", "SqsSink"),
    "sns": ("sns", "SnsSink"),
    "http": ("webhook", "WebhookSink"),
    "https": ("webhook", "WebhookSink"),
    "webhook": ("webhook", "WebhookSink"),
    "jsonl": ("json_lines", "JsonLinesSink"),
    "stdout": ("json_lines", "JsonLinesSink"),
    "file": ("json_lines", "JsonLinesSink"),
    "inbox": ("inbox", "InboxSink"),  # inbox+postgresql://…, or any other database URL behind the plus
}


def sink_from_url(url: str, options: Mapping[str, Any] | None = None) -> Sink:
    """The sink a URL names, for configuration files and the command line."""
    scheme = url.partition(":")[0].lower()
    if scheme.startswith("inbox+"):
        scheme = "inbox"
    if scheme not in SINKS:
        raise ConfigError(f"unknown kind of sink {scheme!r}; expected a URL that begins with {', '.join(SINKS)}")
    try:
        urlsplit(url)
    except ValueError:
        raise ConfigError(f"the {scheme} URL of the sink cannot be read; expected {scheme}://host:port/…") from None
    module, name = SINKS[scheme]
    made: Sink = getattr(import_module(f".{module}", __name__), name).from_url(url, options or {})
    return made
