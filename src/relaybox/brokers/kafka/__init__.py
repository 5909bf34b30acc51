"""Kafka."""

from ..connection import extra

with extra("confluent-kafka", "kafka"):
    from .connection import KafkaConnection
    from .sink import KafkaSink
    from .source import KafkaSource

__all__ = ["KafkaConnection", "KafkaSink", "KafkaSource"]
