"""Liveness, readiness and metrics over HTTP, for orchestrators and scrapers.

    GET /live      200 while the process's loop turns; otherwise restart it
    GET /ready     200 while it delivers; 503 with the reasons while the broker or the database is away
    GET /metrics   Prometheus text, when prometheus-client is installed

In a thread of its own, so that a stuck loop can still be told from a healthy one.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ..errors import ConfigError
from ..values import Health

log = logging.getLogger("relaybox")
Response = tuple[int, str, bytes]


class HealthServer:
    def __init__(
        self, address: str, health: Callable[[], Health], metrics: Callable[[], Response] | None = None
    ) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ConfigError(f"expected an address such as 127.0.0.1:9400 or [::1]:9400, got {address!r}")
        pages: dict[str, Callable[[], Response]] = {
            "/live": lambda: _page(now := health(), now.live),
            "/ready": lambda: _page(now := health(), now.ready),
        }
        if metrics is not None:
            pages["/metrics"] = metrics
        try:
            self._server = _Server((host.strip("[]"), int(port)), _handler(pages))
        except OSError as error:
            raise ConfigError(f"cannot listen on {address}: {error.strerror}") from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="relaybox-health", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)


def _page(health: Health, good: bool) -> Response:
    body = json.dumps({"level": health.level, "live": health.live, "ready": health.ready, "reasons": health.reasons})
    return 200 if good else 503, "application/json", body.encode()


def metrics_page(registry: Any = None) -> Callable[[], Response] | None:
    """The Prometheus page, of the client's own registry unless another is given; None: the client is not installed."""
    try:
        from prometheus_client import REGISTRY, generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_LATEST
    except ImportError:
        log.warning("/metrics is not served: pip install 'relaybox[prometheus]'")
        return None
    return lambda: (200, CONTENT_TYPE_LATEST, generate_latest(registry or REGISTRY))


def _handler(pages: dict[str, Callable[[], Response]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5
        server_version = "relaybox"
        sys_version = ""

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            try:
                status, kind, body = page() if page else (404, "text/plain", b"/live /ready /metrics\n")
            except Exception as error:
                log.error("the page %s failed: %s", self.path[:40], type(error).__name__)
                status, kind, body = 500, "text/plain", b"failed\n"
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *args: Any) -> None:
            """A scrape every few seconds is no news."""

    return Handler
