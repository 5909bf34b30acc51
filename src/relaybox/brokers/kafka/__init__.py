"""Kafka."""

from __future__ import annotations

from ..connection import extra

with extra("confluent-kafka", "kafka"):
    from .connection import KafkaConnection
    from .sink import KafkaSink
    from .source import KafkaSource

__all__ = ["KafkaConnection", "KafkaSink", "KafkaSource"]
