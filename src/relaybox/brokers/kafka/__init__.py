"""Kafka."""

from __future__ import annotations

from .sink import KafkaSink
from .source import KafkaSource

__all__ = ["KafkaSink", "KafkaSource"]
