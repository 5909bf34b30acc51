"""Redis Streams."""

from ..connection import extra

with extra("redis", "redis"):
    from .connection import RedisConnection
    from .sink import RedisStreamSink
    from .source import RedisStreamSource

__all__ = ["RedisConnection", "RedisStreamSink", "RedisStreamSource"]
