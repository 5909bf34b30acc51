"""NATS JetStream: each message with its id, acknowledged by the stream that stored it.

    NatsSink("tls://nats-1.example,nats-2.example", credentials_file=Path("relay.creds"))

The destination is the subject. With `key_token` the ordering key follows as its last token, percent-encoded, for
consumers that filter or partition by it. A stream keeps messages in the order of their arrival, and drops an id that it
has seen within its `duplicate_window`.

A lost connection is replaced by a new one at the next publish or probe.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, TypeAlias
from urllib.parse import quote, urlunsplit

from ...errors import BrokerUnavailable, ConfigError, DeliveryError, MissingExtra, Reject, ServiceClosed
from ..options import split_url, typed
from ..spi import Answer, Features, Message
from .connection import NO_RESPONDERS, SUBJECT, NatsLink, NatsServers

try:
    from nats.aio.msg import Msg
    from nats.errors import Error
    from nats.js.errors import NotFoundError, ServiceUnavailableError
except ModuleNotFoundError as error:
    raise MissingExtra("nats-py", "nats") from error

log = logging.getLogger("relaybox")

PROBE_SECONDS = 0.5  # for a connection that is there; a new one follows if it is silent
GLANCE_SECONDS = 0.25  # between two looks at whether late acknowledgements are late because the connection is gone
DEFAULT_WINDOW = timedelta(minutes=2)  # of a stream that names none
LONGEST_SUBJECT = 2000  # bytes; a server ends connections whose lines are longer than 4096

_NAME_CHARACTERS = "!#$%&'*+^`|"  # of a header's name, beside those that `quote` never changes
_VALUE_CHARACTERS = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) != "%")

# Error codes of JetStream.
TOO_LARGE = {10054, 10097}  # more than the stream's max_msg_size; more than 64 kB of headers
ACCOUNT_FULL = 10002

Reply: TypeAlias = "asyncio.Future[Msg | BrokerUnavailable]"


class NatsSink:
    """`handshake_first` is for servers that begin with TLS instead of a greeting, `inbox_prefix` for accounts that may
    subscribe to their own inboxes only, `domain` for a leaf node's JetStream."""

    name = "nats"

    def __init__(
        self,
        url: str = "nats://localhost:4222",
        *,
        key_token: bool = False,
        username: str | None = None,
        password: str | None = None,
        token: str | None = None,
        credentials_file: Path | None = None,
        nkey_file: Path | None = None,
        ca_file: Path | None = None,
        cert_file: Path | None = None,
        key_file: Path | None = None,
        handshake_first: bool = False,
        inbox_prefix: str = "_INBOX",
        domain: str | None = None,
        connect_timeout: timedelta = timedelta(seconds=2),
        timeout: timedelta = timedelta(seconds=5),
    ) -> None:
        self._servers = NatsServers(
            url,
            username=username,
            password=password,
            token=token,
            credentials_file=credentials_file,
            nkey_file=nkey_file,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
            handshake_first=handshake_first,
            inbox_prefix=inbox_prefix,
            connect_timeout=connect_timeout,
        )
        if timeout <= timedelta(0):
            raise ConfigError(f"expected timeout to be a positive duration, got {timeout}")
        self._key_token = key_token
        self._domain = domain
        self._timeout = timeout.total_seconds()
        self._link: _Link | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self._windows: dict[str, timedelta | None] = {}  # by stream; None: not asked yet
        self.features = Features(
            keyed_order=True,
            dedup=True,
            dedup_window=DEFAULT_WINDOW,
            attribute_prefix="ce-",
            percent_encoded=True,
        )

    @classmethod
    def from_url(cls, url: str, options: Mapping[str, Any]) -> Self:
        parts, options = split_url(url, options)
        return cls(urlunsplit(parts), **typed(cls, options, taken={"url"}))

    def __repr__(self) -> str:
        return f"NatsSink({str(self._servers)!r})"

    # Life

    async def open(self) -> None:
        self._closed = False
        await self._linked()

    async def probe(self) -> None:
        link = await self._linked()
        if not await link.answers():
            await self._linked(instead_of=link)

    async def close(self) -> None:
        self._closed = True
        async with self._connecting:
            link, self._link = self._link, None
        if link is not None:
            await link.client.close()

    async def _linked(self, instead_of: _Link | None = None) -> _Link:
        """The connection, or a new one in place of one that is lost or that the caller found silent."""
        async with self._connecting:
            if self._closed:
                raise ServiceClosed("the NATS sink is closed")
            link = self._link
            if link is not None and (not link.alive or link is instead_of):
                self._link = None
                await link.client.close()
            if self._link is None:
                self._link = await self._connect()
            return self._link

    async def _connect(self) -> _Link:
        try:
            return await self._servers.connect(lambda: _Link(self._domain))
        except ConnectionError as error:
            raise self._unavailable(str(error)) from None

    # Publishing

    async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
        link = await self._linked()
        replies: list[Reply | DeliveryError] = []
        try:
            for message in messages:
                replies.append(await self._send(link, message))
            waiting = {reply for reply in replies if isinstance(reply, asyncio.Future)}
            async with asyncio.timeout(self._timeout):
                while waiting and link.alive:
                    _, waiting = await asyncio.wait(waiting, timeout=GLANCE_SECONDS)
        except TimeoutError:
            pass
        finally:
            for reply in replies:
                if isinstance(reply, asyncio.Future):
                    reply.cancel()
        known: dict[str, bool | None] = {}
        answers = [
            reply if isinstance(reply, DeliveryError) else await self._answer(link, message, reply, known)
            for message, reply in zip(messages, replies, strict=True)
        ]
        await self._learn_windows(link)
        return answers

    async def _send(self, link: _Link, message: Message) -> Reply | DeliveryError:
        subject = self._subject(message)
        if not SUBJECT.fullmatch(subject) or len(subject.encode()) > LONGEST_SUBJECT:
            return DeliveryError(f"{subject[:200]!r} is no subject to publish to; key_token encodes any key")
        headers = _headers(message)
        size = len(message.body) + 12 + sum(len(name) + len(value.encode()) + 4 for name, value in headers.items())
        if size > link.client.max_payload:
            return Reject(f"the message is {size:,} bytes with its headers, NATS takes {link.client.max_payload:,}")
        try:
            return await link.send(message, subject, headers)
        except (Error, OSError) as error:
            return self._unavailable(str(error))

    def _subject(self, message: Message) -> str:
        if not self._key_token:
            return message.destination
        key = "_" if message.key is None else quote(message.key, safe="").replace(".", "%2E")
        return f"{message.destination}.{key}"

    async def _answer(self, link: _Link, message: Message, reply: Reply, known: dict[str, bool | None]) -> Answer:
        result = None if reply.cancelled() else reply.result()
        if isinstance(result, BrokerUnavailable):
            return result
        if result is None or (result.headers and result.headers.get("Status") == NO_RESPONDERS):
            return await self._silence(link, message.destination, result is not None, known)
        try:
            acknowledgement = json.loads(result.data)
            if "error" in acknowledgement:
                return _refusal(acknowledgement["error"], message)
            self._windows.setdefault(acknowledgement["stream"], None)
        except (ValueError, LookupError, TypeError):
            return DeliveryError(f"something that is no stream answers on {message.destination!r}")
        return None

    async def _silence(self, link: _Link, where: str, nobody: bool, known: dict[str, bool | None]) -> DeliveryError:
        """No stream: the destination's fault. A stream that does not answer while the server does: it waits alone.

        `known` remembers which destinations have a stream. One question without an answer is enough per publish.
        """
        if not link.alive:
            return self._unavailable("connection lost")
        if where not in known:
            ask = None not in known.values()
            known[where] = await link.has_stream(f"{where}.*" if self._key_token else where) if ask else None
        if known[where] is False or (nobody and known[where] is None):
            return DeliveryError(f"no stream takes the subject {where!r}; add it to the subjects of one")
        if known[where]:
            text = f"no stream answers for {where!r}: JetStream is off, a leader is missing, or the stream has no_ack"
            return BrokerUnavailable(text, destination=where)
        return self._unavailable(f"no acknowledgement for {where!r} within {self._timeout:g} s")

    async def _learn_windows(self, link: _Link) -> None:
        """Declare the shortest duplicate window of the streams that answered."""
        for stream in [name for name, window in self._windows.items() if window is None]:
            window = self._windows[stream] = await link.duplicate_window(stream) or DEFAULT_WINDOW
            shortest = min(each for each in self._windows.values() if each is not None)
            self.features = replace(self.features, dedup_window=shortest)
            if window < DEFAULT_WINDOW:
                log.warning("%s: the stream %s drops repeated ids for %s only", self, stream, window)

    def _unavailable(self, reason: str) -> BrokerUnavailable:
        return BrokerUnavailable(f"NATS at {self._servers}: {reason}")


class _Link(NatsLink):
    """One connection, and the messages that wait for their stream's answer."""

    def __init__(self, domain: str | None) -> None:
        super().__init__(domain)
        self._numbers = itertools.count()
        self._waiting: dict[str, tuple[Reply, Message, str]] = {}

    async def answers(self) -> bool:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self.client.rtt()
        except (TimeoutError, Error, OSError):
            return False
        return True

    async def send(self, message: Message, subject: str, headers: dict[str, str]) -> Reply:
        number = str(next(self._numbers))
        reply: Reply = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply, message, subject
        reply.add_done_callback(lambda _: self._waiting.pop(number))
        try:
            await self.client.publish(subject, message.body, reply=f"{self._inbox}.{number}", headers=headers)
        except BaseException:
            reply.cancel()
            raise
        return reply

    async def has_stream(self, subject: str) -> bool | None:
        """None: the account may not ask."""
        try:
            await self.streams.find_stream_name_by_subject(subject)
        except NotFoundError:
            return False
        except ServiceUnavailableError:
            return True  # for all we know
        except (Error, OSError, ValueError):
            return None
        return True

    async def duplicate_window(self, stream: str) -> timedelta | None:
        try:
            seconds = (await self.streams.stream_info(stream)).config.duplicate_window
        except (Error, OSError, ValueError):
            return None  # an account that may not ask
        return timedelta(seconds=seconds) if seconds else None

    async def _replied(self, message: Msg) -> None:
        waiting = self._waiting.get(message.subject.rpartition(".")[2])
        if waiting is not None and not waiting[0].done():
            waiting[0].set_result(message)

    async def _failed(self, error: Exception) -> None:
        """A publish without permission gets no other answer."""
        await super()._failed(error)
        text = str(error)
        if "permissions violation for publish" in text:
            for reply, message, subject in list(self._waiting.values()):
                if f'"{subject.lower()}"' in text and not reply.done():
                    reply.set_result(BrokerUnavailable(text, destination=message.destination))


def _headers(message: Message) -> dict[str, str]:
    """Names that NATS would not take are percent-encoded as values are. Those that instruct the server are left out:
    a writer must not be able to purge a stream (Nats-Rollup) or to make its own message expire (Nats-TTL)."""
    headers = {
        quote(name, safe=_NAME_CHARACTERS): value
        for name, value in message.attributes.items()
        if name.lower() != "content-type" and not name.lower().startswith("nats-")
    }
    headers["content-type"] = quote(message.content_type, safe=_VALUE_CHARACTERS + " %")
    headers["Nats-Msg-Id"] = quote(message.id, safe=_VALUE_CHARACTERS)
    return headers


def _refusal(error: Mapping[str, Any], message: Message) -> DeliveryError:
    """Why a stream did not store a message.

    too large             never
    503, 500, 429, full   limits (discard=new), no leader, no disk: the destination waits
    anything else         tried again, and counted: a sealed stream, say
    """
    text = f"{error.get('description')} ({error.get('err_code')})"
    if error.get("err_code") in TOO_LARGE:
        return Reject(f"the stream of {message.destination!r} refused {len(message.body):,} bytes: {text}")
    if error.get("code") in (429, 500, 503) or error.get("err_code") == ACCOUNT_FULL:
        return BrokerUnavailable(f"the stream of {message.destination!r}: {text}", destination=message.destination)
    return DeliveryError(f"the stream of {message.destination!r} refused: {text}")
