"""RabbitMQ."""

from ..connection import extra

with extra("aiormq", "rabbitmq"):
    from .connection import RabbitMQConnection
    from .sink import RabbitMQSink
    from .source import RabbitMQSource

__all__ = ["RabbitMQConnection", "RabbitMQSink", "RabbitMQSource"]
