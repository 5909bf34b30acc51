"""A TCP gate in front of a server: outages without ending the server, which may keep its state in memory."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Coroutine
from typing import Any, Literal
from urllib.parse import urlsplit

from ...twins import Closing
from .process import LOOPBACK

GateState = Literal["open", "refusing", "blackhole", "dropping replies"]


class TcpGate(Closing):
    """Forwards a loopback port of its own to `target_port`, until told otherwise.

    Kafka sends its clients on to the address it advertises: make the gate first, give the broker
    ``settings={"advertised.listeners": f"PLAINTEXT://127.0.0.1:{gate.port}"}``, and set `target_port` later.
    """

    def __init__(self, target_port: int = 0, *, host: str = LOOPBACK) -> None:
        self.target_port = target_port
        self.host = host  # the address it listens on
        self.held_ends = 0  # how many connections were ended without the other side being told
        self._state: GateState = "open"
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._connections: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relaybox-gate", daemon=True)
        self._thread.start()
        self._door = _bind(host, 0)
        self.port: int = self._door.getsockname()[1]
        self.open()

    def through(self, url: str) -> str:
        """`url` of the server, but by way of this gate."""
        parts = urlsplit(url)
        account, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{account}{at}{self.host}:{self.port}").geturl()

    def open(self) -> None:
        """Forward again. Connections that lost bytes meanwhile are cut: a stream cannot have a hole."""
        self._do(self._enter("open"))

    def refuse(self) -> None:
        """Cut every connection and refuse new ones, as if the server were gone."""
        self._do(self._enter("refusing"))

    def blackhole(self) -> None:
        """Accept connections and keep the old ones, but hold back every byte until `open`."""
        self._do(self._enter("blackhole"))

    def drop_replies(self) -> None:
        """Forward what clients send and throw away what the server answers."""
        self._do(self._enter("dropping replies"))

    def strand(self) -> None:
        """The connections there are fall silent for good, without an end, as behind a firewall that forgot them. New
        ones work."""
        self._do(self._strand())

    def hold_ends(self) -> None:
        """What the server says on the connections there are still arrives. That it hangs up does not."""
        self._do(self._hold_ends())

    @property
    def connected(self) -> int:
        return len(self._connections)

    def close(self) -> None:
        self._do(self._enter("refusing"))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._door.close()

    def _do(self, step: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(step, self._loop).result(timeout=10)

    async def _strand(self) -> None:
        for connection in self._connections:
            connection.torn = connection.silent = True

    async def _hold_ends(self) -> None:
        for connection in self._connections:
            connection.endless = True

    async def _enter(self, state: GateState) -> None:
        self._state = state
        if state == "blackhole":
            self._flowing.clear()
        else:
            self._flowing.set()
        if state == "refusing":
            self._loop.remove_reader(self._door)
            self._door.close()
            self._door = _bind(self.host, self.port)  # bound but not listening: refuses, and nobody else gets the port
        else:
            self._door.listen()
            self._loop.add_reader(self._door, self._welcome)
        for connection in list(self._connections):
            if state == "refusing" or (state == "open" and connection.torn):
                await connection.cut()

    def _welcome(self) -> None:
        with contextlib.suppress(OSError):  # a client that did not wait
            client, _ = self._door.accept()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio sets it where it connects only
            connection = _Connection(self, client)
            self._connections.add(connection)
            connection.task.add_done_callback(lambda _: self._connections.discard(connection))

    # For the connections

    async def flow(self) -> None:
        await self._flowing.wait()

    @property
    def drops_replies(self) -> bool:
        return self._state == "dropping replies"


class _Connection:
    def __init__(self, gate: TcpGate, client: socket.socket) -> None:
        self._gate = gate
        self._client = client
        self.torn = False
        self.silent = False
        self.endless = False
        self.task = asyncio.get_running_loop().create_task(self._forward())

    async def cut(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        self._client.close()  # the task may not have begun

    async def _forward(self) -> None:
        client_reader, client_writer = await asyncio.open_connection(sock=self._client)
        writers = [client_writer]
        try:
            await self._gate.flow()
            server_reader, server_writer = await asyncio.open_connection(LOOPBACK, self._gate.target_port)
            writers.append(server_writer)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(client_reader, server_writer))
                pumps.create_task(self._pump(server_reader, client_writer, replies=True))
        except* OSError:
            pass  # one side is gone, and in a moment the other
        finally:
            for writer in writers:
                writer.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, replies: bool = False) -> None:
        while data := await source.read(65536):
            await self._gate.flow()
            if self.silent:
                continue
            if replies and self._gate.drops_replies:
                self.torn = True
            else:
                sink.write(data)
                await sink.drain()
        await self._gate.flow()
        if self.silent or self.endless:
            self._gate.held_ends += 1
            await asyncio.Event().wait()  # until it is cut: nobody is told of an end
        sink.write_eof()


def _bind(host: str, port: int) -> socket.socket:
    door = socket.socket()
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    door.bind((host, port))
    door.setblocking(False)
    return door
