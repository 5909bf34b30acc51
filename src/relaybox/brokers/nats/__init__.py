"""NATS JetStream."""

from __future__ import annotations

from ..connection import extra

with extra("nats-py", "nats"):
    from .connection import NatsConnection
    from .sink import NatsSink
    from .source import NatsSource

__all__ = ["NatsConnection", "NatsSink", "NatsSource"]
