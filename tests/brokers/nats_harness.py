"""The NATS sink against a private server; read back over the bare protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

from relaybox.brokers.nats.sink import NatsSink
from relaybox.testing.servers import NatsServer, require
from relaybox.testing.sink_contract import SECRET, Received, SinkHarness

USER = "relay"
_names = itertools.count()


class NatsHarness(SinkHarness):
    """One stream per destination, of the same name."""

    oversize = 1_048_576  # which the server takes, but not with headers

    def __init__(self, server: NatsServer, **options: Any) -> None:
        self.server = server
        self.options: dict[str, Any] = {"username": USER, "password": SECRET, **options}

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.server.port}"

    def sink(self, **options: Any) -> NatsSink:
        given = {"url": self.url, **self.options, **options}
        return NatsSink.from_url(given.pop("url"), given)

    async def destination(self, **settings: Any) -> str:
        name = f"orders-{next(_names)}"
        subject = f"{name}.>" if self.options.get("key_token") else name
        await self.ask(f"STREAM.CREATE.{name}", {"name": name, "subjects": [subject], **settings})
        return name

    async def read(self, destination: str, count: int, timeout: float = 20) -> list[Received]:
        return [_received(entry) for entry in await self.entries(destination)]

    async def entries(self, stream: str) -> list[dict[str, Any]]:
        """A message is visible when it is acknowledged, so there is nothing to wait for."""
        async with RawNats(self.server.port) as client:
            state = (await client.ask(f"STREAM.INFO.{stream}"))["state"]
            numbers = range(state["first_seq"], state["last_seq"] + 1)
            return [(await client.ask(f"STREAM.MSG.GET.{stream}", {"seq": seq}))["message"] for seq in numbers]

    async def ask(self, subject: str, question: dict[str, Any] | None = None) -> dict[str, Any]:
        async with RawNats(self.server.port) as client:
            return await client.ask(subject, question)

    async def missing(self) -> str:
        return "nobody.listens"

    async def outage(self) -> None:
        self.server.kill()

    async def recovery(self) -> None:
        await asyncio.to_thread(self.server.start)

    def wrong_credentials(self) -> NatsSink:
        return self.sink(password=f"wrong-{SECRET}")


class Settings(dict[str, Any]):
    """Of nats-server, over those of the private server; False takes one away."""


class _PrivateNats(NatsServer):
    def __init__(self, settings: Settings) -> None:
        super().__init__(durable=False, user=USER, password=SECRET)
        self._more = settings

    def _command(self) -> Sequence[str | Path]:
        command = super()._command()
        file = Path(command[-1])
        settings = {**json.loads(file.read_text()), **self._more}
        self._write(file.name, json.dumps({name: value for name, value in settings.items() if value is not False}))
        return command


def private_server(settings: Settings | None = None) -> NatsServer:
    """With an account whose password is the secret that nobody may see."""
    require("nats", durable=False)  # skips where there is none
    return _PrivateNats(settings or Settings())


class RawNats:
    """Requests to the JetStream API, in the words of the protocol."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=8_000_000)
        await self._reader.readline()  # INFO
        options = {"verbose": False, "headers": True, "no_responders": True, "user": USER, "pass": SECRET}
        self._writer.write(f"CONNECT {json.dumps(options)}\r\nSUB inbox 1\r\n".encode())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def ask(self, subject: str, question: dict[str, Any] | None = None) -> dict[str, Any]:
        body = json.dumps(question).encode() if question else b""
        self._writer.write(b"PUB $JS.API.%s inbox %d\r\n%s\r\n" % (subject.encode(), len(body), body))
        async with asyncio.timeout(20):
            answer = json.loads(await self._message())
        assert "error" not in answer, answer["error"]
        return answer

    async def subscribe(self, subject: str) -> None:
        """Returns when the server knows it."""
        self._writer.write(f"SUB {subject} 2\r\nPING\r\n".encode())
        assert await self._reader.readline() == b"PONG\r\n"

    async def reply(self, answer: bytes) -> None:
        """To the next message."""
        line = (await self._reader.readline()).split()  # HMSG subject sid reply sizes
        self._writer.write(b"PUB %s %d\r\n%s\r\n" % (line[3], len(answer), answer))
        await self._writer.drain()

    async def _message(self) -> bytes:
        while True:
            line = (await self._reader.readline()).split()
            if line[0] == b"PING":
                self._writer.write(b"PONG\r\n")
            elif line[0] == b"MSG":
                return (await self._reader.readexactly(int(line[-1]) + 2))[:-2]
            else:
                raise AssertionError(b" ".join(line))


def _received(entry: dict[str, Any]) -> Received:
    headers = headers_of(entry)
    key = headers.get("aggregate_id")
    body = base64.b64decode(entry.get("data", ""))
    return Received(headers["Nats-Msg-Id"], key, body, headers["content-type"], headers)


def headers_of(entry: dict[str, Any], *, decoded: bool = True) -> dict[str, str]:
    lines = base64.b64decode(entry["hdrs"]).decode().split("\r\n")
    pairs = (line.partition(": ") for line in lines[1:] if line)
    return {name: unquote(value) if decoded and name != "content-type" else value for name, _, value in pairs}
