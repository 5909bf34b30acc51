"""What extensions implement, and what they need for it.

Observer                 told of what happens: `observers=` of outboxes, inboxes, relays and the others
Codec                    reads payloads: `codec=` of an outbox
Clock                    tells the time: `clock=` of an outbox; relaybox.testing has one that stands still
WriterHook, Interceptor  called around writes, and around listeners
Sink, Source             brokers: by an entry point in the group relaybox.sinks or relaybox.sources, named after the
                         scheme of their URLs, that names a class with `from_url(url, options)`. relaybox.testing has
                         the suites that they pass
Connection, AsyncConnection   drivers, by an entry point in the group relaybox.drivers; provisional in 1.x
"""

from __future__ import annotations

from .brokers.formats import MessageFormat
from .brokers.parse import MALFORMED
from .brokers.spi import Answer, DestinationLimits, DestinationSink, Features, Incoming, Message, Sink, Source
from .clock import Clock
from .codec import Codec
from .drivers.spi import AsyncConnection, Connection
from .facts import Observer
from .hooks import Interceptor, WriterHook

__all__ = [
    "MALFORMED",
    "Answer",
    "AsyncConnection",
    "Clock",
    "Codec",
    "Connection",
    "Features",
    "Incoming",
    "Interceptor",
    "Message",
    "MessageFormat",
    "Observer",
    "DestinationLimits",
    "DestinationSink",
    "Sink",
    "Source",
    "WriterHook",
]
