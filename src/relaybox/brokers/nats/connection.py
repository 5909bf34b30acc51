"""A connection to NATS: where the servers are, how to log in, and one client that neither reconnects nor buffers.

What a client kept through an outage would be sent behind its user's back, after newer messages. A lost connection is
replaced by a new one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from ...errors import ConfigError, MissingExtra
from ..hosts import Hosts, client_context

try:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.transport import TcpTransport
    from nats.errors import Error, NoServersError
except ModuleNotFoundError as error:
    raise MissingExtra("nats-py", "nats") from error
try:
    nkeys: Any = import_module("nkeys")
except ModuleNotFoundError:  # only credentials_file and nkey_file need it
    nkeys = None

PORTS = {"nats": 4222, "tls": 4222}
ASK_SECONDS = 1.0  # for questions about streams
NO_RESPONDERS = "503"
NOT_CONNECTED = (OSError, Error) if nkeys is None else (OSError, Error, nkeys.NkeysError, ValueError)
SUBJECT = re.compile(r"(?!\$(JS|SYS)\.)[^\s.*>]+(\.[^\s.*>]+)*")  # those two command the server


class NatsLink:
    """One connection with an inbox of its own; `_replied` gets what arrives below that."""

    def __init__(self, domain: str | None) -> None:
        self.client = _Impatient()
        self.error: Exception | None = None  # the last that nobody was waiting for
        self.streams = self.client.jetstream(domain=domain, timeout=ASK_SECONDS)
        self._inbox = ""

    @property
    def alive(self) -> bool:
        return self.client.is_connected

    async def open(self, server: str, settings: Mapping[str, Any]) -> None:
        try:
            await self.client.connect(servers=[server], error_cb=self._failed, **settings)
            self.error = None
            self._inbox = self.client.new_inbox()
            await self.client.subscribe(f"{self._inbox}.*", cb=self._replied)
            for _ in range(2):  # the first PING overtakes what is in the buffer
                await self.client.rtt()
            if self.error is not None:
                raise Error(f"{self.error}; set inbox_prefix to what the account may subscribe to")
        except BaseException:
            await self.client.close()
            raise

    async def _replied(self, message: Msg) -> None:
        raise NotImplementedError

    async def _failed(self, error: Exception) -> None:
        """Called for what the server says unasked."""
        self.error = error


Link = TypeVar("Link", bound=NatsLink)


class NatsServers:
    """Says what is wrong with the options before anybody connects."""

    def __init__(
        self,
        url: str,
        *,
        username: str | None,
        password: str | None,
        token: str | None,
        credentials_file: Path | None,
        nkey_file: Path | None,
        ca_file: Path | None,
        cert_file: Path | None,
        key_file: Path | None,
        handshake_first: bool,
        inbox_prefix: str,
        connect_timeout: timedelta,
    ) -> None:
        self._hosts = hosts = Hosts.parse(url, PORTS)
        if hosts.scheme == "nats" and (ca_file or cert_file or key_file or handshake_first):
            raise ConfigError(f"ca_file, cert_file, key_file and handshake_first need a tls:// URL, got {hosts}")
        if not SUBJECT.fullmatch(inbox_prefix):
            raise ConfigError(f"expected inbox_prefix to be a subject, got {inbox_prefix!r}")
        if connect_timeout <= timedelta(0):
            raise ConfigError(f"expected connect_timeout to be a positive duration, got {connect_timeout}")
        self._settings: dict[str, Any] = {
            "name": "relaybox",
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0,
            "pending_size": 0,
            "connect_timeout": connect_timeout.total_seconds(),
            "inbox_prefix": inbox_prefix,
            **_account(hosts, username, password, token, credentials_file, nkey_file),
        }
        if hosts.scheme == "tls":
            self._settings["tls"] = client_context(ca_file, cert_file, key_file)
            self._settings["tls_handshake_first"] = handshake_first

    def __str__(self) -> str:
        return str(self._hosts)

    async def connect(self, make: Callable[[], Link]) -> Link:
        """To the first server that answers. Raises ConnectionError with the reason of each."""
        failures = []
        seconds = self._settings["connect_timeout"]
        for host, port in self._hosts.addresses:
            link = make()
            server = f"{self._hosts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"
            try:
                async with asyncio.timeout(seconds):
                    await link.open(server, self._settings)
                return link
            except TimeoutError:
                failures.append(f"no connection to {host}:{port} within {seconds:g} s")
            except NOT_CONNECTED as error:
                failures.append(str(link.error if isinstance(error, NoServersError) else error))
        raise ConnectionError("; ".join(failures))


class _Impatient(Client):
    """nats-py, which would go on in plaintext with a server that offers no TLS, and sends the rest of its buffer when
    it closes."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if "tls" in self.options and initial_connection and not self.options["tls_handshake_first"]:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise Error("the server offers no TLS")
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        self._pending.clear()
        self._pending_data_size = 0
        transport, self._transport = self._transport, None  # waiting for it to close takes for ever after a failed TLS
        if isinstance(transport, TcpTransport) and transport._io_writer is not None:
            transport._io_writer.transport.abort()
        if self._flush_queue is not None:  # it had begun to connect
            await super()._close(status, do_cbs)


def _account(
    hosts: Hosts,
    username: str | None,
    password: str | None,
    token: str | None,
    credentials_file: Path | None,
    nkey_file: Path | None,
) -> dict[str, Any]:
    """The one way to log in, as nats-py wants it. A URL with a name and no password has a token."""
    username, password = username or hosts.username, password or hosts.password
    if username is not None and password is None and token is None:
        username, token = None, username
    ways: dict[str, dict[str, Any]] = {
        "username": {"user": username, "password": password},
        "token": {"token": token},
        "credentials_file": {"user_credentials": str(credentials_file)},
        "nkey_file": {"nkeys_seed": str(nkey_file)},
    }
    values = (username or password, token, credentials_file, nkey_file)
    given = [way for way, value in zip(ways, values, strict=True) if value is not None]
    if len(given) > 1:
        raise ConfigError(f"expected one way to log in to NATS, got {' and '.join(given)}")
    if "username" in given and not (username and password):
        raise ConfigError("expected username and password together")
    if credentials_file is not None:
        _check(credentials_file, b"BEGIN NATS USER JWT", b"BEGIN USER NKEY SEED")
    if nkey_file is not None:
        _check(nkey_file, b"SU")
    return ways[given[0]] if given else {}


def _check(file: Path, *parts: bytes) -> None:
    """Before nats-py reads it, which would look for a missing part for ever."""
    if nkeys is None:
        raise MissingExtra("nkeys", "nats")
    try:
        text = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    for part in parts:
        if part not in text:
            raise ConfigError(f"expected {file} to have the credentials for NATS, with {part.decode()!r} in it")
