"""Google Pub/Sub."""

from ..connection import extra

with extra("google-cloud-pubsub", "pubsub"):
    from .connection import PubSubConnection
    from .sink import PubSubSink
    from .source import PubSubSource

__all__ = ["PubSubConnection", "PubSubSink", "PubSubSource"]
