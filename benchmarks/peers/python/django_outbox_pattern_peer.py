"""django-outbox-pattern: the Published model and its publish loop, with a no-op STOMP connection."""

from __future__ import annotations

import asyncio
import sys
import threading
from importlib.metadata import version
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import django
from django.conf import settings as django_settings

from benchmarks.peers.python.peer import BUSINESS_NOTE, BUSINESS_TABLE, Meter, Peer, payload, serve

METER = Meter()
CHUNK = 1_000


class NoBroker:
    """Stands where the STOMP connection stands: its `send` is the no-op handler."""

    def __init__(self, **_: Any) -> None:
        self.open = False

    def is_connected(self) -> bool:
        return self.open

    def connect(self, **_: Any) -> None:
        self.open = True

    def disconnect(self) -> None:
        self.open = False

    def set_listener(self, name: str, listener: object) -> None:
        pass

    def send(self, body: str, **_: Any) -> None:
        METER.one(body)


class DjangoOutboxPatternPeer(Peer):
    """Published rows written by the ORM, sent by Producer.publish_message_from_database."""

    version = version("django-outbox-pattern")
    sync_producer = True
    settings = MappingProxyType(
        {
            "driver": "Django ORM + psycopg 3",
            "DEFAULT_PUBLISHED_CHUNK_SIZE": CHUNK,
            "DEFAULT_PRODUCER_WAITING_TIME": "1 s (whole seconds only; 0 would spin)",
            "handler": "the STOMP connection's send, replaced by a no-op (DEFAULT_CONNECTION_CLASS)",
            "batched write": "Published.objects.bulk_create",
            "payload": "JSON text",
        }
    )

    def __init__(self) -> None:
        super().__init__()
        self.meter = METER

    async def setup(self, fresh: bool) -> None:
        await asyncio.to_thread(self._configure, fresh)

    def _configure(self, fresh: bool) -> None:
        parts = urlsplit(self.url)
        if not django_settings.configured:
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
                    }
                },
                DJANGO_OUTBOX_PATTERN={
                    "DEFAULT_CONNECTION_CLASS": f"{NoBroker.__module__}.{NoBroker.__name__}",
                    "DEFAULT_PUBLISHED_CHUNK_SIZE": CHUNK,
                },
                LOGGING_CONFIG=None,
            )
            django.setup()
        from django.core.management import call_command
        from django.db import connection

        if fresh:
            call_command("migrate", verbosity=0)
            with connection.cursor() as cursor:
                cursor.execute(BUSINESS_TABLE)

    async def write_block(self, first: int, count: int, event: bool) -> None:
        await asyncio.to_thread(self._block, first, count, event)

    def _block(self, first: int, count: int, event: bool) -> None:
        for seq in range(first, first + count):
            self._commit(seq, event)

    def commit_one_sync(self, seq: int) -> None:
        self._commit(seq, True)

    def _commit(self, seq: int, event: bool) -> None:
        from django.db import connection, transaction
        from django_outbox_pattern.models import Published

        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO business (note) VALUES (%s)", [BUSINESS_NOTE])
            if event:
                Published.objects.create(destination="bench", body=payload(seq))

    async def write_batch(self, first: int, count: int) -> None:
        await asyncio.to_thread(self._batch, first, count)

    def _batch(self, first: int, count: int) -> None:
        from django.db import transaction
        from django_outbox_pattern.headers import get_message_headers
        from django_outbox_pattern.models import Published

        rows = [Published(destination="bench", body=payload(seq)) for seq in range(first, first + count)]
        for row in rows:
            row.headers = get_message_headers(row)
        with transaction.atomic():
            Published.objects.bulk_create(rows)

    async def start(self) -> None:
        self.halt = threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    async def stop(self) -> None:
        self.halt.set()
        await asyncio.to_thread(self.thread.join, 120)

    def _work(self) -> None:
        from django_outbox_pattern.factories import factory_producer

        producer = factory_producer()
        while not self.halt.is_set():
            producer.publish_message_from_database()


if __name__ == "__main__":
    sys.modules["benchmarks.peers.python.django_outbox_pattern_peer"] = sys.modules["__main__"]
    NoBroker.__module__ = "benchmarks.peers.python.django_outbox_pattern_peer"
    serve(DjangoOutboxPatternPeer())
