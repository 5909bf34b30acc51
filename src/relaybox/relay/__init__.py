"""Outbox to broker: the process that moves events out, per key in order, through crashes and outages."""

from .relay import AsyncRelay, Preview, Relay

__all__ = ["AsyncRelay", "Preview", "Relay"]
