"""NATS JetStream."""

from ..connection import extra

with extra("nats-py", "nats"):
    from .connection import NatsConnection
    from .sink import NatsSink
    from .source import NatsSource

__all__ = ["NatsConnection", "NatsSink", "NatsSource"]
