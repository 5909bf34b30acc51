"""Ingest: messages of a broker or of webhooks into an inbox, acknowledged when they are stored.

One module per broker, each importing its client only when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from ..errors import ConfigError
from .ingest import Ingest, Totals
from .parse import MALFORMED, Reading, malformed, parse
from .spi import Incoming, Source

__all__ = [
    "MALFORMED",
    "SOURCES",
    "Incoming",
    "Ingest",
    "Reading",
    "Source",
    "Totals",
    "malformed",
    "parse",
    "source_from_url",
]

# Scheme of the URL: module and class.
SOURCES: dict[str, tuple[str, str]] = {
    "kafka": ("kafka", "KafkaSource"),
    "kafkas": ("kafka", "KafkaSource"),
    "amqp": ("rabbitmq", "RabbitMQSource"),
    "amqps": ("rabbitmq", "RabbitMQSource"),
    "nats": ("nats", "NatsSource"),
    "tls": ("nats", "NatsSource"),
    "redis": ("redis_streams", "RedisStreamSource"),
    "rediss": ("redis_streams", "RedisStreamSource"),
    "sqs": ("sqs", "SqsSource"),
    "pubsub": ("pubsub", "PubSubSource"),
}


def source_from_url(url: str, options: Mapping[str, Any] | None = None) -> Source:
    """The source a URL names, for configuration files and the command line."""
    scheme = url.partition(":")[0].lower()
    if scheme not in SOURCES:
        raise ConfigError(f"unknown kind of source {scheme!r}; expected a URL that begins with {', '.join(SOURCES)}")
    try:
        urlsplit(url)
    except ValueError:
        raise ConfigError(f"the {scheme} URL of the source cannot be read; expected {scheme}://host:port/…") from None
    module, name = SOURCES[scheme]
    made: Source = getattr(import_module(f".{module}", __name__), name).from_url(url, options or {})
    return made
