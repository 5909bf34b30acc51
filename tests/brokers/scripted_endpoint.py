"""An HTTP endpoint that misbehaves on purpose: what it does with a request is a function in the test."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    names: list[str]  # of the headers, as often as they came
    body: bytes


Behaviour: TypeAlias = Callable[[Request, asyncio.StreamWriter], Awaitable[Any]]


class ScriptedEndpoint:
    """Plain or TLS, on a loopback address. Counts connections and requests, and how many were open at once."""

    def __init__(self, behaviour: Behaviour | None, host: str, port: int) -> None:
        self.behaviour = behaviour
        self.host = host
        self.port = port
        self.connections = 0
        self.requests: list[Request] = []
        self.open = 0
        self.most_open = 0

    def url(self, path: str = "/in", scheme: str = "http", host: str | None = None) -> str:
        return f"{scheme}://{host or self.host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                if self.behaviour is None:  # deaf and dumb
                    await reader.read()
                    return
                request = await read_request(reader)
                self.requests.append(request)
                self.open += 1
                self.most_open = max(self.open, self.most_open)
                try:
                    await self.behaviour(request, writer)
                finally:
                    self.open -= 1
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            return
        finally:
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = [line.split(": ", 1) for line in head[1:] if line]
    headers = {name.lower(): value for name, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(head[0].split(" ")[1], headers, [name.lower() for name, _ in pairs], body)


@asynccontextmanager
async def endpoint(
    behaviour: Behaviour | None, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[ScriptedEndpoint]:
    made = ScriptedEndpoint(behaviour, host, port)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        with suppress(asyncio.CancelledError):  # the end of the test
            await made.serve(reader, writer)

    server = await asyncio.start_server(serve, host, port, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


# -- behaviours -------------------------------------------------------------------------------------


def answer(status: int, body: bytes = b"", **headers: str) -> Behaviour:
    given = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} Said\r\ncontent-length: {len(body)}\r\n{given}\r\n".encode()

    async def behave(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(head + body)
        await writer.drain()

    return behave


def raw(*parts: bytes, pause: float = 0.0, for_ever: bool = False) -> Behaviour:
    """These bytes, one after the other; the last for ever if asked."""

    async def behave(request: Request, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)
        while for_ever:
            writer.write(parts[-1])
            await writer.drain()
            await asyncio.sleep(pause)
        writer.close()

    return behave


async def hang(request: Request, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def reset(request: Request, writer: asyncio.StreamWriter) -> None:
    """A connection that ends in RST instead of FIN."""
    handle: socket.socket = writer.get_extra_info("socket")
    handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


# -- certificates -----------------------------------------------------------------------------------


class Authority:
    """A certificate authority in a folder. `issue` gives the paths of a certificate and its key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        certificate = self._signed(self._name, self._key.public_key(), [], authority=True)
        self.file = str(folder / "ca.pem")
        Path(self.file).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, days: int = 1, password: bytes | None = None) -> tuple[str, str]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._signed(subject, key.public_key(), [name], days=days)
        encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        files = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        )
        return str(files[0]), str(files[1])

    def server(self, name: str, *, days: int = 1) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*self.issue(name, days=days))
        return context

    def _signed(
        self, subject: x509.Name, key: Any, names: list[str], *, authority: bool = False, days: int = 1
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        start, end = (now - DAY, now + days * DAY) if days > 0 else (now - 9 * DAY, now - DAY)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(map(x509.DNSName, names)), critical=False)
        return builder.sign(self._key, hashes.SHA256())
