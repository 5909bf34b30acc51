"""Redis streams."""

from __future__ import annotations

from .sink import RedisStreamSink
from .source import RedisStreamSource

__all__ = ["RedisStreamSink", "RedisStreamSource"]
