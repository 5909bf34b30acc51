"""NATS JetStream."""

from __future__ import annotations

from .sink import NatsSink
from .source import NatsSource

__all__ = ["NatsSink", "NatsSource"]
