"""Liveness, readiness and metrics over HTTP, for orchestrators and scrapers.

    GET /live      200 while the process's loop turns; otherwise restart it
    GET /ready     200 while it delivers; 503 with the reasons while the broker or the database is away
    GET /metrics   Prometheus text, when prometheus-client is installed

In a thread and a loop of its own, so that a stuck loop can still be told from a healthy one. Clients cannot use it up:
connections, the bytes of a request and its time are bounded. With a token, a client that does not send it gets the
status of /live and /ready without the reasons, and no metrics.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any

from ..errors import ConfigError
from ..tasks import LoopThread, cancelled
from ..values import Health

log = logging.getLogger("relaybox")
Response = tuple[int, str, bytes]

CONNECTIONS = 32
LONGEST = 8192  # bytes of a request
SECONDS = 5.0  # from the first byte to the last
_TEXT = "text/plain"


class HealthServer:
    def __init__(
        self,
        address: str,
        health: Callable[[], Health],
        metrics: Callable[[], Response] | None = None,
        *,
        token: str | None = None,
        seconds: float = SECONDS,
    ) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ConfigError(f"expected an address such as 127.0.0.1:9400 or [::1]:9400, got {address!r}")
        if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
            raise ConfigError("expected the token of the health pages to be printable ASCII without spaces")
        self._health = health
        self._metrics = metrics
        self._token = token
        self._seconds = seconds
        self._rendering: asyncio.Future[Response] | None = None
        self._waiting: dict[asyncio.Task[None], None] = {}  # connections, the oldest first
        self._thread = LoopThread("relaybox-health")
        try:
            self._server = self._thread.call(self._listen(host.strip("[]"), int(port)))
        except OSError as error:
            self._thread.stop()
            raise ConfigError(f"cannot listen on {address}: {_reason(error)}") from None

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        self._thread.call(self._close())
        self._thread.stop()

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._connected, host, port, limit=LONGEST)

    async def _close(self) -> None:
        self._server.close()
        await cancelled(*self._waiting)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Where there are too many, the one that has dawdled longest goes: an honest client needs no time."""
        task = asyncio.current_task()
        assert task is not None
        if len(self._waiting) >= CONNECTIONS:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.cancel()
        self._waiting[task] = None
        try:
            async with asyncio.timeout(self._seconds):
                with suppress(OSError):
                    await self._converse(reader, writer)
        except (TimeoutError, asyncio.CancelledError):
            pass  # this task is nobody else's
        finally:
            self._waiting.pop(task, None)
            writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            request, answer = b"", (431, _TEXT, b"the request is too long\n")
        except asyncio.IncompleteReadError:
            return
        else:
            answer = await self._answer(request)
        status, kind, body = answer
        about = f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
        if status == HTTPStatus.UNAUTHORIZED:
            about += "WWW-Authenticate: Bearer\r\n"
        head = f"HTTP/1.0 {status} {HTTPStatus(status).phrase}\r\nServer: relaybox\r\n{about}\r\n"
        writer.write(head.encode() + (b"" if request.startswith(b"HEAD ") else body))
        writer.write_eof()
        await writer.drain()
        while await reader.read(LONGEST):  # closing over unread bytes would take the answer back
            pass

    async def _answer(self, request: bytes) -> Response:
        first, *headers = request.decode("latin-1").split("\r\n")
        method, _, rest = first.partition(" ")
        if method not in ("GET", "HEAD"):
            return 405, _TEXT, b"GET and HEAD only\n"
        path = rest.partition(" ")[0].partition("?")[0]
        trusted = self._token is None or _bears(headers, self._token)
        try:
            if path in ("/live", "/ready"):
                return _page(now := self._health(), now.live if path == "/live" else now.ready, whole=trusted)
            if path == "/metrics" and self._metrics is not None:
                return await self._rendered(self._metrics) if trusted else (401, _TEXT, b"a token is needed\n")
        except Exception as error:
            log.error("the page %s failed: %s", path, type(error).__name__)
            return 500, _TEXT, b"failed\n"
        return 404, _TEXT, b"/live /ready /metrics\n"

    async def _rendered(self, metrics: Callable[[], Response]) -> Response:
        """In a thread, since a collector may ask a database, and in one for all who ask meanwhile."""
        if self._rendering is None or self._rendering.done():
            rendering = self._rendering = self._thread.loop.create_future()
            rendering.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, if nobody waits
            render = partial(self._render, metrics, rendering)
            threading.Thread(target=render, name="relaybox-metrics", daemon=True).start()
        return await asyncio.shield(self._rendering)

    def _render(self, metrics: Callable[[], Response], done: asyncio.Future[Response]) -> None:
        settle: Callable[[], None]
        try:
            settle = partial(done.set_result, metrics())
        except Exception as error:
            settle = partial(done.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed
            self._thread.loop.call_soon_threadsafe(settle)


def _reason(error: OSError) -> str | None:
    """asyncio puts a sentence of its own into an error of the system."""
    return error.strerror if isinstance(error, socket.gaierror) or not error.errno else os.strerror(error.errno)


def _bears(headers: list[str], token: str) -> bool:
    for header in headers:
        name, _, value = header.partition(":")
        scheme, _, given = value.strip().partition(" ")
        if name.lower() == "authorization" and scheme.lower() == "bearer":
            return hmac.compare_digest(given.strip().encode(), token.encode())
    return False


def _page(health: Health, good: bool, *, whole: bool) -> Response:
    about: dict[str, Any] = {"level": health.level, "live": health.live, "ready": health.ready}
    if whole:
        about["reasons"] = health.reasons
    return 200 if good else 503, "application/json", json.dumps(about).encode()


def metrics_page(registry: Any = None) -> Callable[[], Response] | None:
    """The Prometheus page, of the client's own registry unless another is given; None: the client is not installed."""
    try:
        from prometheus_client import REGISTRY, generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_LATEST
    except ImportError:
        log.warning("/metrics is not served: pip install 'relaybox[prometheus]'")
        return None
    return lambda: (200, CONTENT_TYPE_LATEST, generate_latest(registry or REGISTRY))
