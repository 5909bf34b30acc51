"""NATS JetStream: a durable pull consumer with explicit acknowledgements.

    NatsSource("tls://nats-1.example,nats-2.example", stream="ORDERS", consumer="billing", subject="orders.>")

The consumer is made if it is not there, or used as it is. One process reads in the order of the stream. What another
one received and never acknowledged, the server gives out again when `ack_wait` is over, behind newer messages: to keep
the order it is read from the stream before anything new, and dropped by the inbox when it comes again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Literal, TypeAlias

from nats.aio.msg import Msg
from nats.errors import Error
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy
from nats.js.errors import APIError, NotFoundError

from ...durations import Duration
from ...errors import ConfigError, InvalidEvent
from ...op import T
from ..connection import Connected
from ..door import taken
from ..leased import ROUND_TRIP, LeasedSource
from ..linked import GLANCE_SECONDS, answered
from ..options import check_choice, check_given, check_least, positive
from ..spi import Incoming, take_content_type
from .connection import UNREADABLE, NatsConnection, NatsLink, PendingReply

log = logging.getLogger("relaybox")

STREAM_NOT_FOUND = 10059
SUBJECTS = re.compile(r"[^\s.]+(\.[^\s.]+)*")
NO_MESSAGES = {"404", "408"}  # nothing there; nothing came in time
ACK, NAK, PROGRESS = b"+ACK", b"-NAK", b"+WPI"
FAILURES = (Error, OSError, TimeoutError, ValueError)

NatsStart: TypeAlias = Literal["all", "new"]


class NatsSource(Connected[NatsConnection], LeasedSource):
    """Reads a stream as one of its consumers. The first argument is a URL or a NatsConnection.

    stream           what is read
    consumer         its durable name; several processes may share it
    subject, start, ack_wait and max_ack_pending are for a consumer that is made; one that is there keeps its own:
    subject          only these, with * or > at most
    start            the whole stream, or only what is stored from now on
    ack_wait         after so long without a word from us a message comes again
    max_ack_pending  most messages on their way and not acknowledged, of all processes together
    """

    name = "nats"
    connection_type = NatsConnection

    def __init__(
        self,
        connection: str | NatsConnection = "nats://localhost:4222",
        *,
        stream: str,
        consumer: str = "relaybox",
        subject: str | None = None,
        start: NatsStart = "all",
        ack_wait: Duration = "30s",
        max_ack_pending: int = 1000,
    ) -> None:
        check_given(stream=stream, consumer=consumer)
        patience = positive("ack_wait", ack_wait)
        for name, value in (("stream", stream), ("consumer", consumer)):
            if set(value) & set(" \t\r\n.*>/\\"):
                raise ConfigError(
                    f"expected {name} to be a name without spaces, dots, stars and slashes, got {value!r}"
                )
        if subject is not None and not SUBJECTS.fullmatch(subject):
            raise ConfigError(f"expected subject to be a subject, with * or > at most, got {subject!r}")
        check_choice("start", start, NatsStart)
        check_least(1, max_ack_pending=max_ack_pending)
        super().__init__(patience)
        self._connection = NatsConnection.of(connection)
        self._stream = stream
        self._wanted = ConsumerConfig(
            name=consumer,
            durable_name=consumer,
            deliver_policy=DeliverPolicy.ALL if start == "all" else DeliverPolicy.NEW,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=patience.total_seconds(),
            max_ack_pending=max_ack_pending,
            filter_subject=subject,
        )
        domain = self._connection.domain
        self._api = f"$JS.{domain}.API" if domain else "$JS.API"
        self._timeout = self._connection.timeout.total_seconds()
        self._link: NatsLink | None = None
        self._pull: _Pull | None = None
        self._filter = subject
        self._missed = range(0)  # numbers in the stream that somebody received and never acknowledged

    def __repr__(self) -> str:
        return f"NatsSource({str(self._connection)!r}, stream={self._stream!r}, consumer={self._wanted.name!r})"

    # Life

    async def _connect(self) -> None:
        try:
            self._link = await self._connection.connect(self._deliver)
        except ConnectionError as error:
            raise self._unavailable(error) from None
        try:
            info = await self._consumer(self._link)
        except ConfigError:
            raise
        except FAILURES as error:
            raise self._unavailable(self._link.error or error) from None
        self._check(info)
        self._wanted = self._wanted.evolve(deliver_policy=DeliverPolicy.ALL)  # one that vanishes is made again
        self._pull = None
        self._lease = info.config.ack_wait or self._lease
        self._filter = info.config.filter_subject
        self._missed = range(0)
        if info.num_ack_pending and info.ack_floor and info.delivered and not info.config.filter_subjects:
            self._missed = range(info.ack_floor.stream_seq + 1, info.delivered.stream_seq + 1)

    async def _consumer(self, link: NatsLink) -> ConsumerInfo:
        try:
            found: ConsumerInfo = await link.streams.consumer_info(self._stream, str(self._wanted.name))
            return found
        except NotFoundError as error:
            if error.err_code == STREAM_NOT_FOUND:
                raise ConfigError(f"there is no stream {self._stream!r} at {self._connection}") from None
        try:
            made: ConsumerInfo = await link.streams.add_consumer(self._stream, self._wanted)
            return made
        except APIError as error:
            if error.code == 400:
                raise ConfigError(f"{self!r} cannot be made: {error.description}") from None
            raise

    def _check(self, info: ConsumerInfo) -> None:
        config = info.config
        if config.deliver_subject:
            raise ConfigError(f"{self!r} is a push consumer; expected one to pull from")
        if config.ack_policy != AckPolicy.EXPLICIT:
            raise ConfigError(f"{self!r} has ack_policy {config.ack_policy}; expected explicit")
        wanted = self._wanted.filter_subject
        if wanted and wanted not in (config.filter_subject, *(config.filter_subjects or ())):
            raise ConfigError(f"{self!r} reads {config.filter_subject or 'all subjects'!r}, not {wanted!r}")
        if config.max_deliver and config.max_deliver > 0:
            log.warning("%r has max_deliver: what was not stored by then is lost", self)

    async def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    # Messages

    async def _fetch(self, limit: int, wait: float) -> Sequence[Incoming]:
        """Messages go to `_ready` as they arrive, also those of a request that outlives this call."""
        if self._missed:
            return await self._read_missed(limit)
        link = self._linked()
        if self._ready:
            return []
        pull = self._pull
        if pull is None or pull.done:
            pull = self._pull = _Pull(limit, max(wait, ROUND_TRIP), self._timeout)
            request = {"batch": limit, "expires": int(pull.expires * 1e9)}
            subject = f"{self._api}.CONSUMER.MSG.NEXT.{self._stream}.{self._wanted.name}"
            pull.asked(await self._published(link.ask(subject, json.dumps(request).encode())))
        if not await pull.news(lambda: link.alive):
            self._pull = None
            raise self._unavailable("no answer in time" if link.alive else "connection lost")
        if pull.refusal and not self._ready:
            raise self._unavailable(pull.refusal)
        return []

    def _deliver(self, message: Msg) -> None:
        place = message.metadata
        self._ready.append(
            self._incoming(
                message.subject, place.sequence.stream, message.data, message.headers, place.timestamp, message.reply
            )
        )
        if self._pull is not None:
            self._pull.got_one()

    async def _read_missed(self, limit: int) -> list[Incoming]:
        link, found = self._linked(), list[Incoming]()
        while self._missed and len(found) < limit:
            try:
                subject = self._filter or ">"
                raw = await link.streams.get_msg(self._stream, seq=self._missed.start, subject=subject, next=True)
            except NotFoundError:
                self._missed = range(0)
                break
            except FAILURES as error:
                if "permissions violation" not in str(link.error).lower():
                    raise self._unavailable(error) from None
                log.warning("%r: may not read what is not acknowledged, it comes out of order: %s", self, link.error)
                self._missed = range(0)
                break
            number = raw.seq or 0
            if number in self._missed:
                found.append(self._incoming(raw.subject or "", number, raw.data, raw.headers, raw.time, None))
            self._missed = range(number + 1, self._missed.stop)
        return found

    async def _settle(self, messages: Sequence[Incoming]) -> None:
        await self._tell(messages, ACK)

    async def _give_back(self, messages: Sequence[Incoming]) -> None:
        await self._tell(messages, NAK)

    async def _extend(self, messages: Sequence[Incoming]) -> None:
        link = self._linked()
        for message in messages:
            if message.receipt is not None:
                await self._published(link.client.publish(message.receipt, PROGRESS))

    async def _tell(self, messages: Sequence[Incoming], word: bytes) -> None:
        """And wait for the answers: an acknowledgement that got lost would let the message come again."""
        link = self._linked()
        answers: list[PendingReply] = []
        try:
            for message in messages:
                if message.receipt is not None:
                    answers.append(await self._published(link.ask(message.receipt, word)))
            silent = await answered(answers, self._timeout, lambda: link.alive)
        finally:
            for answer in answers:
                answer.cancel()
        for answer in answers:
            status, reason = _status(answer) if answer not in silent else (None, "")
            if status is not None:
                raise self._unavailable(reason)
        if silent:
            raise self._unavailable(f"{len(silent)} acknowledgements have no answer")

    async def _published(self, sending: Awaitable[T]) -> T:
        try:
            return await sending
        except FAILURES as error:
            raise self._unavailable(error) from None

    def _linked(self) -> NatsLink:
        if self._link is None or not self._link.alive:
            raise self._unavailable("connection lost")
        return self._link

    def _incoming(
        self,
        subject: str,
        number: int,
        body: bytes | None,
        headers: Mapping[str, str] | None,
        sent_at: datetime | None,
        receipt: str | None,
    ) -> Incoming:
        place = f"{self._stream}:{number}"

        def read() -> Incoming:
            found = headers or {}
            if UNREADABLE in found:
                raise InvalidEvent(f"its headers cannot be read ({found[UNREADABLE]})")
            given = {str(n): str(v) for n, v in found.items() if not n.lower().startswith("nats-")}
            return Incoming(
                channel=subject,
                place=place,
                body=body or b"",
                headers=given,
                content_type=take_content_type(given),
                sent_at=sent_at,
                percent_encoded=True,
                receipt=receipt,
            )

        return taken(read, channel=subject, place=place, body=body or b"", receipt=receipt)


class _Pull:
    """One request for messages, as far as it was answered."""

    def __init__(self, batch: int, expires: float, patience: float) -> None:
        self.expires = expires
        self.refusal: str | None = None
        self._left = batch
        self._deadline = asyncio.get_running_loop().time() + expires + patience
        self._answer: PendingReply | None = None  # comes if there are fewer messages
        self._ended = False
        self._news = asyncio.Event()

    @property
    def done(self) -> bool:
        return self._ended or self._left <= 0

    def asked(self, answer: PendingReply) -> None:
        self._answer = answer
        answer.add_done_callback(self._end)

    def got_one(self) -> None:
        self._left -= 1
        if self._left <= 0 and self._answer is not None:
            self._answer.cancel()
        self._news.set()

    def _end(self, answer: PendingReply) -> None:
        if not answer.cancelled():
            self._ended = True
            status, reason = _status(answer)
            self.refusal = None if status in NO_MESSAGES else reason
            self._news.set()

    async def news(self, alive: Callable[[], bool]) -> bool:
        """A message or the end has come; False: the server is silent or gone."""
        loop = asyncio.get_running_loop()
        while not self._news.is_set():
            if not alive() or loop.time() > self._deadline:
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout(GLANCE_SECONDS):
                    await self._news.wait()
        self._news.clear()
        return True


def _status(answer: PendingReply) -> tuple[str | None, str]:
    """What the server says in place of a message or a plain answer, which has no status."""
    if (denied := answer.exception()) is not None:
        return "denied", str(denied)
    headers = answer.result().headers or {}
    reason = str(headers.get("Description", "")).strip().partition("\n")[0]
    return headers.get("Status"), f"{reason or 'no consumer answers'} ({headers.get('Status')})"
