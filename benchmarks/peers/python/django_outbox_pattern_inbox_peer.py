"""django-outbox-pattern as an inbox: its consumer behind a no-op STOMP connection, its callback as documented."""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import version
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import django
from django.conf import settings as django_settings

from benchmarks.peers.python.peer import Peer, payload_bytes, serve


class NoBroker:
    """Stands where the STOMP connection stands; acknowledging is free."""

    def __init__(self, **_: Any) -> None:
        self.open = False

    def is_connected(self) -> bool:
        return self.open

    def connect(self, **_: Any) -> None:
        self.open = True

    def disconnect(self) -> None:
        self.open = False

    def set_listener(self, name: str, listener: object) -> None: ...

    def remove_listener(self, name: str) -> None: ...

    def subscribe(self, *_: Any, **__: Any) -> None: ...

    def unsubscribe(self, *_: Any) -> None: ...

    def ack(self, message_id: str) -> None: ...


class DjangoOutboxPatternInbox(Peer):
    """Messages come one after the other, as with its prefetch-count of 1: it stores and processes in one go."""

    version = version("django-outbox-pattern")
    settings = MappingProxyType(
        {
            "driver": "Django ORM + psycopg 3",
            "callback": "with transaction.atomic(): the no-op effect, payload.save()",
            "CONN_MAX_AGE": "none: persistent connections",
            "broker": "the STOMP connection replaced by a no-op (DEFAULT_CONNECTION_CLASS)",
        }
    )

    async def setup(self, fresh: bool) -> None:
        await asyncio.to_thread(self._configure, fresh)

    def _configure(self, fresh: bool) -> None:
        parts = urlsplit(self.url)
        django_settings.configure(
            INSTALLED_APPS=["django_outbox_pattern"],
            USE_TZ=True,
            DATABASES={
                "default": {
                    "ENGINE": "django.db.backends.postgresql",
                    "NAME": parts.path.lstrip("/"),
                    "USER": parts.username or "",
                    "PASSWORD": parts.password or "",
                    "HOST": parts.hostname or "",
                    "PORT": str(parts.port or ""),
                    "CONN_MAX_AGE": None,
                }
            },
            DJANGO_OUTBOX_PATTERN={"DEFAULT_CONNECTION_CLASS": f"{NoBroker.__module__}.{NoBroker.__name__}"},
            LOGGING_CONFIG=None,
        )
        django.setup()
        from django.core.management import call_command

        if fresh:
            call_command("migrate", verbosity=0)

    async def start(self) -> None:
        from django.db import transaction
        from django_outbox_pattern.factories import factory_consumer
        from django_outbox_pattern.payloads import Payload

        meter = self.meter

        def callback(message: Payload) -> None:
            with transaction.atomic():
                meter.one(message.body)
                message.save()

        self.consumer = factory_consumer()
        self.consumer.start(callback, "/exchange/bench/placed", "bench")

    async def write_batch(self, first: int, count: int) -> None:
        await asyncio.to_thread(self._arrive, first, count)

    def _arrive(self, first: int, count: int) -> None:
        for seq in range(first, first + count):
            headers = {"message-id": f"bench-{seq}", "destination": "/exchange/bench/placed"}
            self.consumer.handle_incoming_message(payload_bytes(seq).decode(), headers)

    async def stop(self) -> None:
        await asyncio.to_thread(self.consumer.stop)


if __name__ == "__main__":
    sys.modules["benchmarks.peers.python.django_outbox_pattern_inbox_peer"] = sys.modules["__main__"]
    NoBroker.__module__ = "benchmarks.peers.python.django_outbox_pattern_inbox_peer"
    serve(DjangoOutboxPatternInbox())
