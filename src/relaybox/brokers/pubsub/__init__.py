"""Google Pub/Sub."""

from __future__ import annotations

from .sink import PubSubSink
from .source import PubSubSource

__all__ = ["PubSubSink", "PubSubSource"]
