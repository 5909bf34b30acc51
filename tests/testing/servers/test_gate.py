"""The gate's stranded connections: silent without an end, while new ones work."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest

from relaybox.testing.servers import TcpGate


@pytest.fixture
def echo() -> int:
    """Port of a server that answers with what it heard."""
    door = socket.create_server(("127.0.0.1", 0))

    def answer(client: socket.socket) -> None:
        with client:
            while data := client.recv(100):
                client.sendall(data)

    def serve() -> None:
        while True:
            client, _ = door.accept()
            threading.Thread(target=answer, args=(client,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return int(door.getsockname()[1])


def said(client: socket.socket) -> bytes:
    client.sendall(b"hello")
    return client.recv(100)


def test_stranded_connections_say_nothing_and_new_ones_work(echo: int) -> None:
    with TcpGate(echo) as gate, socket.create_connection(("127.0.0.1", gate.port)) as old:
        assert said(old) == b"hello"
        gate.strand()
        old.settimeout(0.2)
        with pytest.raises(TimeoutError):
            said(old)
        with socket.create_connection(("127.0.0.1", gate.port)) as new:
            assert said(new) == b"hello"
        with pytest.raises(TimeoutError):
            old.recv(100)
        gate.open()  # cuts what has a hole
        old.settimeout(5)
        with suppress(ConnectionError):  # an end is as good
            assert old.recv(100) == b""
