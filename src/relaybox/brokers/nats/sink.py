"""NATS JetStream: each message with its id, acknowledged by the stream that stored it.

    NatsSink("tls://nats-1.example,nats-2.example?credentials_file=relay.creds")

The destination is the subject. With `key_token` the ordering key follows as its last token, percent-encoded, for
consumers that filter or partition by it. A stream keeps messages in the order of their arrival, and drops an id that it
has seen within its `duplicate_window`.

A lost connection is replaced by a new one at the next publish or probe.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from nats.errors import Error
from nats.js.errors import NotFoundError, ServiceUnavailableError

from ...errors import BrokerUnavailable, DeliveryError, Reject
from ..linked import LinkedSink, answered
from ..spi import Answer, Features, Message
from .connection import SUBJECT, NatsConnection, NatsLink, PendingReply

log = logging.getLogger("relaybox")

NO_RESPONDERS = "503"
DEFAULT_WINDOW = timedelta(minutes=2)  # of a stream that names none
LONGEST_SUBJECT = 2000  # bytes; a server ends connections whose lines are longer than 4096

_NAME_CHARACTERS = "!#$%&'*+^`|"  # of a header's name, beside those that `quote` never changes
_VALUE_CHARACTERS = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) != "%")

# Error codes of JetStream.
TOO_LARGE = {10054, 10097}  # more than the stream's max_msg_size; more than 64 kB of headers
ACCOUNT_FULL = 10002


class NatsSink(LinkedSink[NatsConnection, NatsLink]):
    """Sends events to subjects that a stream stores. The first argument is a URL or a NatsConnection.

    key_token  the ordering key is the last token of the subject
    """

    name = "nats"
    connection_type = NatsConnection

    def __init__(self, connection: str | NatsConnection = "nats://localhost:4222", *, key_token: bool = False) -> None:
        super().__init__()
        self._connection = NatsConnection.of(connection)
        self._key_token = key_token
        self._timeout = self._connection.timeout.total_seconds()
        self._windows: dict[str, timedelta | None] = {}  # by stream; None: not asked yet
        self.features = Features(
            keyed_order=True,
            dedup=True,
            dedup_window=DEFAULT_WINDOW,
            attribute_prefix="ce-",
            percent_encoded=True,
        )

    async def _connect(self) -> NatsLink:
        return await self._connection.connect()

    async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
        link = await self._linked()
        replies: list[PendingReply | DeliveryError] = []
        try:
            for message in messages:
                replies.append(await self._send(link, message))
            waiting = [reply for reply in replies if isinstance(reply, asyncio.Future)]
            await answered(waiting, self._timeout, lambda: link.alive)
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

    async def _send(self, link: NatsLink, message: Message) -> PendingReply | DeliveryError:
        subject = self._subject(message)
        if not SUBJECT.fullmatch(subject) or len(subject.encode()) > LONGEST_SUBJECT:
            return DeliveryError(f"{subject[:200]!r} is no subject to publish to; key_token encodes any key")
        headers = _headers(message)
        size = len(message.body) + 12 + sum(len(name) + len(value.encode()) + 4 for name, value in headers.items())
        if size > link.client.max_payload:
            return Reject(f"the message is {size:,} bytes with its headers, NATS takes {link.client.max_payload:,}")
        try:
            return await link.ask(subject, message.body, headers)
        except (Error, OSError) as error:
            return self._unavailable(str(error))

    def _subject(self, message: Message) -> str:
        if not self._key_token:
            return message.destination
        key = "_" if message.key is None else quote(message.key, safe="").replace(".", "%2E")
        return f"{message.destination}.{key}"

    async def _answer(
        self, link: NatsLink, message: Message, reply: PendingReply, known: dict[str, bool | None]
    ) -> Answer:
        if not reply.cancelled() and (denied := reply.exception()) is not None:
            return BrokerUnavailable(str(denied), destination=message.destination)
        result = None if reply.cancelled() else reply.result()
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

    async def _silence(self, link: NatsLink, where: str, nobody: bool, known: dict[str, bool | None]) -> DeliveryError:
        """No stream: the destination's fault. A stream that does not answer while the server does: it waits alone.

        `known` remembers which destinations have a stream. One question without an answer is enough per publish.
        """
        if not link.alive:
            return self._unavailable("connection lost")
        if where not in known:
            ask = None not in known.values()
            known[where] = await _has_stream(link, f"{where}.*" if self._key_token else where) if ask else None
        if known[where] is False or (nobody and known[where] is None):
            return DeliveryError(f"no stream takes the subject {where!r}; add it to the subjects of one")
        if known[where]:
            text = f"no stream answers for {where!r}: JetStream is off, a leader is missing, or the stream has no_ack"
            return BrokerUnavailable(text, destination=where)
        return self._unavailable(f"no acknowledgement for {where!r} within {self._timeout:g} s")

    async def _learn_windows(self, link: NatsLink) -> None:
        """Declare the shortest duplicate window of the streams that answered."""
        for stream in [name for name, window in self._windows.items() if window is None]:
            window = self._windows[stream] = await _duplicate_window(link, stream) or DEFAULT_WINDOW
            shortest = min(each for each in self._windows.values() if each is not None)
            self.features = replace(self.features, dedup_window=shortest)
            if window < DEFAULT_WINDOW:
                log.warning("%s: the stream %s drops repeated ids for %s only", self, stream, window)


async def _has_stream(link: NatsLink, subject: str) -> bool | None:
    """None: the account may not ask."""
    try:
        await link.streams.find_stream_name_by_subject(subject)
    except NotFoundError:
        return False
    except ServiceUnavailableError:
        return True  # for all we know
    except (Error, OSError, ValueError):
        return None
    return True


async def _duplicate_window(link: NatsLink, stream: str) -> timedelta | None:
    try:
        seconds = (await link.streams.stream_info(stream)).config.duplicate_window
    except (Error, OSError, ValueError):
        return None  # an account that may not ask
    return timedelta(seconds=seconds) if seconds else None


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
