"""The proxy of the tests: closed is closed."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from kit import proxy as module
from kit.proxy import Proxy


def test_who_comes_while_it_closes_does_not_get_through(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = Proxy(f"postgresql://x@127.0.0.1:{server.getsockname()[1]}/x")
        connect, port = socket.create_connection, proxy._server.getsockname()[1]

        def closing(*args: Any, **options: Any) -> socket.socket:
            proxy.close()
            return connect(*args, **options)

        monkeypatch.setattr(module.socket, "create_connection", closing)
        with connect(("127.0.0.1", port), timeout=10) as client:
            assert client.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            connect(("127.0.0.1", port), timeout=10)
