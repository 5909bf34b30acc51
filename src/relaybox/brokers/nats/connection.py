"""A connection to NATS: where the servers are, how to log in, and one client that neither reconnects nor buffers.

What a client kept through an outage would be sent behind its user's back, after newer messages. A lost connection is
replaced by a new one.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.transport import TcpTransport
from nats.errors import Error, NoServersError

from ...durations import DurationField
from ...errors import ConfigError, MissingExtra
from ..connection import HostsConnection
from ..options import check_positive

try:
    nkeys: Any = import_module("nkeys")
except ModuleNotFoundError:  # only credentials_file and nkey_file need it
    nkeys = None

ASK_SECONDS = 1.0  # for questions about streams
PROBE_SECONDS = 0.5
UNREADABLE = "relaybox-unreadable"  # the header of a message whose headers cannot be read
NOT_CONNECTED = (OSError, Error) if nkeys is None else (OSError, Error, nkeys.NkeysError, ValueError)
SUBJECT = re.compile(r"(?!\$(JS|SYS)\.)[^\s.*>]+(\.[^\s.*>]+)*")  # those two command the server

PendingReply: TypeAlias = "asyncio.Future[Msg]"


@dataclass(frozen=True, kw_only=True, repr=False)
class NatsConnection(HostsConnection):
    """Where NATS is, and how to log in.

        NatsConnection("tls://nats-1.example,nats-2.example", credentials_file="relay.creds")

    url                          some servers; tls:// is encrypted, and certificates and names are checked
    username, password or token  the account, where the URL has none; nats://token@host has a token
    credentials_file, nkey_file  a user's JWT and seed, or a seed alone
    tls                          verify, require (which verifies nobody) or off, instead of the scheme of the URL
    insecure_no_tls              let a password or token go over the network in clear text
    ca_file                      who signed the servers' certificates, if the system does not know them
    cert_file, key_file          our own certificate, if the servers want one
    handshake_first              the server begins with TLS instead of a greeting
    inbox_prefix                 where answers arrive, for accounts that may subscribe to their own inboxes only
    domain                       of JetStream, at a leaf node
    connect_timeout              of one server
    timeout                      of one answer
    """

    product: ClassVar[str] = "NATS"
    ports: ClassVar[Mapping[str, int]] = {"nats": 4222, "tls": 4222}

    token: str | None = None
    credentials_file: Path | str | None = None
    nkey_file: Path | str | None = None
    handshake_first: bool = False
    inbox_prefix: str = "_INBOX"
    domain: str | None = None
    connect_timeout: DurationField = DurationField("2s")
    timeout: DurationField = DurationField("5s")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not SUBJECT.fullmatch(self.inbox_prefix):
            raise ConfigError(f"expected inbox_prefix to be a subject, got {self.inbox_prefix!r}")
        check_positive(connect_timeout=self.connect_timeout, timeout=self.timeout)
        _ = self._settings  # says what is wrong

    def _for_tls(self) -> dict[str, object]:
        return {**super()._for_tls(), "handshake_first": self.handshake_first}

    def _told_in_clear(self) -> str | None:
        username, password = self.account
        return "password" if password else "token" if username or self.token else None

    @cached_property
    def _settings(self) -> dict[str, Any]:
        """For nats-py."""
        tls = {"tls": self.tls_context, "tls_handshake_first": self.handshake_first} if self.secure else {}
        return {
            "name": "relaybox",
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0,
            "pending_size": 0,
            "connect_timeout": self.connect_timeout.total_seconds(),
            "inbox_prefix": self.inbox_prefix,
            **self._login(),
            **tls,
        }

    def _login(self) -> dict[str, Any]:
        """The one way to log in. A URL with a name and no password has a token."""
        username, password = self.account
        token = self.token
        if username is not None and password is None and token is None:
            username, token = None, username
        ways: dict[str, dict[str, Any]] = {
            "username": {"user": username, "password": password},
            "token": {"token": token},
            "credentials_file": {"user_credentials": str(self.credentials_file)},
            "nkey_file": {"nkeys_seed": str(self.nkey_file)},
        }
        values = (username or password, token, self.credentials_file, self.nkey_file)
        given = [way for way, value in zip(ways, values, strict=True) if value is not None]
        if len(given) > 1:
            raise ConfigError(f"expected one way to log in to NATS, got {' and '.join(given)}")
        if "username" in given and not (username and password):
            raise ConfigError("expected username and password together")
        if self.credentials_file is not None:
            _check(Path(self.credentials_file), b"BEGIN NATS USER JWT", b"BEGIN USER NKEY SEED")
        if self.nkey_file is not None:
            _check(Path(self.nkey_file), b"SU")
        return ways[given[0]] if given else {}

    async def connect(self, deliver: Callable[[Msg], None] | None = None) -> NatsLink:
        """To the first server that answers. Raises ConnectionError with the reason of each."""
        failures = []
        seconds = self.connect_timeout.total_seconds()
        for host, port in self.hosts.addresses:
            link = NatsLink(self.domain, deliver)
            server = f"{'tls' if self.secure else 'nats'}://{f'[{host}]' if ':' in host else host}:{port}"
            try:
                async with asyncio.timeout(seconds):
                    await link.open(server, self._settings)
                return link
            except TimeoutError:
                failures.append(f"no connection to {host}:{port} within {seconds:g} s")
            except NOT_CONNECTED as error:
                failures.append(str(link.error if isinstance(error, NoServersError) else error))
        raise ConnectionError("; ".join(failures))


class NatsLink:
    """One connection with an inbox of its own. Answers go to who asked, a consumer's messages to `deliver`."""

    def __init__(self, domain: str | None, deliver: Callable[[Msg], None] | None) -> None:
        self.client = _Impatient()
        self.error: Exception | None = None  # the last that nobody was waiting for
        self.streams = self.client.jetstream(domain=domain, timeout=ASK_SECONDS)
        self._deliver = deliver
        self._inbox = ""
        self._numbers = itertools.count()
        self._asked: dict[str, tuple[PendingReply, str]] = {}  # by number; with the subject

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
            await self.close()
            raise

    async def answers(self) -> bool:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self.client.rtt()
        except (TimeoutError, Error, OSError):
            return False
        return True

    async def close(self) -> None:
        await self.client.close()

    abort = close

    async def ask(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> PendingReply:
        """The answer to come. Cancel it when it is not waited for any more."""
        number = str(next(self._numbers))
        reply: PendingReply = asyncio.get_running_loop().create_future()
        self._asked[number] = reply, subject
        reply.add_done_callback(lambda _: self._asked.pop(number))
        try:
            await self.client.publish(subject, data, reply=f"{self._inbox}.{number}", headers=headers)
        except BaseException:
            reply.cancel()
            raise
        return reply

    async def _replied(self, message: Msg) -> None:
        if self._deliver is not None and message.reply.startswith("$JS.ACK."):
            self._deliver(message)
            return
        asked = self._asked.get(message.subject.rpartition(".")[2])
        if asked is not None and not asked[0].done():
            asked[0].set_result(message)

    async def _failed(self, error: Exception) -> None:
        """Called for what the server says unasked. A publish without permission gets no other answer."""
        self.error = error
        text = str(error)
        if "permissions violation for publish" in text:
            for reply, subject in list(self._asked.values()):
                if f'"{subject.lower()}"' in text and not reply.done():
                    reply.set_exception(PermissionError(text))


class _Impatient(Client):
    """nats-py, which would go on in plaintext with a server that offers no TLS, and sends the rest of its buffer when
    it closes."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if "tls" in self.options and initial_connection and not self.options["tls_handshake_first"]:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise Error("the server offers no TLS")
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        """What nats-py cannot read would end its reading of the connection, at every new one too, or be left out."""
        try:
            found: dict[str, str] | None = await super()._process_headers(headers)
        except Exception as error:
            return {UNREADABLE: type(error).__name__}
        lost = found is None and headers is not None and headers.partition(b"\r\n")[2].strip() != b""
        return {UNREADABLE: "not text by name"} if lost else found

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        self._pending.clear()
        self._pending_data_size = 0
        transport, self._transport = self._transport, None  # waiting for it to close takes for ever after a failed TLS
        if isinstance(transport, TcpTransport) and transport._io_writer is not None:
            transport._io_writer.transport.abort()
        if self._flush_queue is not None:  # it had begun to connect
            await super()._close(status, do_cbs)


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
