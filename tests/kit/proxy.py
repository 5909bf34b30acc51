"""A TCP proxy that can lose a COMMIT, or only the reply to it, and keep words from the server.

`cut = "after"` forwards the COMMIT and drops the connection before its reply; `"before"` drops it instead of the
COMMIT. Both look the same to the client.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

Cut = Literal["", "before", "after"]


class Proxy:
    def __init__(self, url: str, at: bytes = b"COMMIT", *, unsaid: bytes = b"") -> None:
        """`unsaid`: the server gets blanks in its place."""
        self._parts = urlsplit(url)
        self._at = at
        self._unsaid = unsaid
        self._server = socket.create_server(("127.0.0.1", 0))
        self.cut: Cut = ""
        self.cuts = 0
        self._sockets: list[socket.socket] = []
        self._closed = False
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        user = f"{self._parts.username}:{self._parts.password}@" if self._parts.password else f"{self._parts.username}@"
        return urlunsplit(self._parts._replace(netloc=f"{user}127.0.0.1:{self._server.getsockname()[1]}"))

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            server = socket.create_connection((self._parts.hostname or "127.0.0.1", self._parts.port or 0))
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                if self._closed:  # while we connected
                    _close(client, server)
                    return
                self._sockets += [client, server]
            mute = threading.Event()
            threading.Thread(target=self._upstream, args=(client, server, mute), daemon=True).start()
            threading.Thread(target=self._downstream, args=(client, server, mute), daemon=True).start()

    def _upstream(self, client: socket.socket, server: socket.socket, mute: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if self.cut and self._at in data.upper():
                    self.cuts += 1
                    mode, self.cut = self.cut, ""
                    mute.set()
                    if mode == "before":
                        break
                    server.sendall(data)
                    continue
                server.sendall(data.replace(self._unsaid, b" " * len(self._unsaid)) if self._unsaid else data)
        _close(client, server)

    def _downstream(self, client: socket.socket, server: socket.socket, mute: threading.Event) -> None:
        """Once muted, wait for the server's answer (so the commit is done) and drop the connection instead."""
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if mute.is_set():
                    break
                client.sendall(data)
        _close(client, server)

    def close(self) -> None:
        """No connection gets through any more, nor one that is being opened."""
        with self._lock:
            self._closed = True
            _close(self._server, *self._sockets)  # a shutdown first: accept() would take one more


def _close(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            each.close()
