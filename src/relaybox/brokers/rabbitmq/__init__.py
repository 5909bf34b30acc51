"""RabbitMQ."""

from __future__ import annotations

from .sink import RabbitMQSink
from .source import RabbitMQSource

__all__ = ["RabbitMQSink", "RabbitMQSource"]
