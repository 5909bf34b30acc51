"""Apache Kafka: members of a consumer group share the partitions of some topics; offsets are committed when stored.

    KafkaSource("kafka://broker-1:9092,broker-2:9092/orders,payments", group="billing")

Partitions move cooperatively. Nothing is acknowledged of one that was taken away, even if it has come back meanwhile:
its new owner, or we, begin where the group's offset stands. An outage of the brokers costs no rebalance: the consumer
stays, and goes back to the first message that was not acknowledged.

librdkafka is asked in one thread of its own, also while nobody receives: a member that does not poll would hold up the
others' rebalance, and be expelled in the end.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, TypeAlias

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, TopicPartition

from ...clock import SYSTEM_CLOCK
from ...durations import Duration
from ...errors import BrokerUnavailable, Closed, ConfigError
from ...op import T
from ...tasks import cancelled
from ..connection import Connected
from ..door import taken
from ..options import check_choice, check_given
from ..spi import Incoming, moment, take_content_type
from .connection import KafkaConnection, hide_secrets, milliseconds

log = logging.getLogger("relaybox")
KafkaStart: TypeAlias = Literal["earliest", "latest"]
Partition: TypeAlias = tuple[str, int]

OPEN_SECONDS = 5.0
JOIN_SECONDS = 10.0  # for the first assignment; a member may also be left without partitions
ANSWER_SECONDS = 1.0  # of brokers that seemed to be away
COMMIT_SECONDS = 5.0
GLANCE_SECONDS = 0.005  # between two looks for the answer to a commit
POLL_SECONDS = 0.1  # of the thread: so soon it notices that we close
KEEP_SECONDS = 2.0  # without a receive, until the thread polls for the group's sake
REBALANCE = 30_000  # milliseconds that members have to join again: all of them poll all the time

DEFAULTS: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "partition.assignment.strategy": "cooperative-sticky",
    "isolation.level": "read_committed",
    "queued.max.messages.kbytes": 16_384,  # bounds what a batch can take
    "fetch.wait.max.ms": 100,
    "topic.metadata.refresh.interval.ms": 10_000,  # a broker that has just started may not know a topic yet
    "socket.timeout.ms": 10_000,
    "allow.auto.create.topics": False,
}

# The partition is somebody else's, or about to be: its next consumer begins at the group's offset.
MOVED = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError._ASSIGNMENT_LOST,
    KafkaError._STATE,
}
PASSING = {KafkaError._PARTITION_EOF, KafkaError._TRANSPORT, KafkaError._MAX_POLL_EXCEEDED}
AWAY = {KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError._RESOLVE}


class _Receipt(NamedTuple):
    partition: Partition
    offset: int
    term: int  # how many times a partition had been assigned to us


class KafkaSource(Connected[KafkaConnection]):
    """Reads topics of Kafka as a member of a consumer group. The first argument is a URL or a KafkaConnection.

    topics            names, with commas between them, or ^patterns; from the URL's path if they are not given
    group             the consumer group; its members share the partitions
    start             where a group begins that has no offset yet
    session_timeout   how soon the others get the partitions of a member that died
    """

    name = "kafka"
    connection_type = KafkaConnection

    def __init__(
        self,
        connection: str | KafkaConnection = "kafka://localhost:9092",
        *,
        topics: str | Sequence[str] | None = None,
        group: str,
        start: KafkaStart = "earliest",
        session_timeout: Duration = "10s",
    ) -> None:
        self._connection = KafkaConnection.of(connection)
        topics = self._connection.hosts.path.strip("/") if topics is None else topics
        self._topics = [topic.strip() for topic in (topics.split(",") if isinstance(topics, str) else topics)]
        if not self._topics or not all(self._topics):
            raise ConfigError(f"expected topics to be names with commas between them, got {topics!r}")
        check_given(group=group)
        check_choice("start", start, KafkaStart)
        session = milliseconds("session_timeout", session_timeout, 1000, 1_800_000)
        self._config = self._connection.properties(
            {
                **DEFAULTS,
                "group.id": group,
                "auto.offset.reset": start,
                "session.timeout.ms": session,
                "max.poll.interval.ms": max(session, REBALANCE),
                "heartbeat.interval.ms": session // 4,
            }
        )
        self._thread = ThreadPoolExecutor(1, "relaybox-kafka")
        self._consumer: Consumer | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._asked = 0.0  # when the thread last had something to do
        self._trouble: KafkaError | None = None
        self._joined = False
        self._paused: set[Partition] = set()  # librdkafka remembers it, even if another consumer has them meanwhile
        self._closed = False
        self._terms: dict[Partition, int] = {}  # partitions that are ours
        self._last_term = 0
        self._floors: dict[Partition, int] = {}  # the first offset that is received and not acknowledged
        self._ready: deque[Incoming] = deque()
        self._given: deque[_Receipt] = deque()  # of what was received and is not acknowledged, in this order
        self._handing = threading.Lock()
        self._answers: list[KafkaError | None] = []  # to commits

    def __repr__(self) -> str:
        return f"KafkaSource({str(self._connection)!r}, {','.join(self._topics)!r})"

    # -- what an ingest asks ------------------------------------------------------------------------

    async def open(self) -> None:
        await self._do(self._reach)
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep(), name="relaybox-kafka")

    async def receive(self, limit: int, wait: float) -> Sequence[Incoming]:
        """What the thread has found stays here when this is cancelled."""
        if not self._ready:
            await self._do(self._fill, limit, wait)
        with self._handing:
            batch = [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]
        self._given.extend(message.receipt for message in batch)
        return batch

    async def acknowledge(self, messages: Sequence[Incoming]) -> None:
        await self._do(self._commit, messages)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await cancelled(self._keeper)
            await asyncio.get_running_loop().run_in_executor(self._thread, self._leave)
            self._thread.shutdown(wait=False)

    async def _do(self, work: Callable[..., T], *given: Any) -> T:
        if self._closed:
            raise Closed(f"{self!r} is closed; make a new one")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *given)
        except KafkaException as failure:
            raise self._unavailable(self._text(failure.args[0])) from None
        finally:
            self._asked = SYSTEM_CLOCK.monotonic()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(KEEP_SECONDS)
            if SYSTEM_CLOCK.monotonic() - self._asked > KEEP_SECONDS:
                try:
                    await self._do(self._rest)
                except BrokerUnavailable as error:
                    log.debug("%r: %s", self, error)

    # -- in the thread ------------------------------------------------------------------------------

    def _reach(self) -> None:
        """Join, or look whether the brokers are back."""
        if self._trouble is not None and self._trouble.fatal():
            self._leave()
        self._trouble = None
        if self._consumer is None:
            self._join()
            return
        self._check_topics(self._consumer)
        self._ready.clear()
        self._given.clear()
        try:
            for (topic, partition), offset in self._floors.items():
                self._consumer.seek(TopicPartition(topic, partition, offset))
        except KafkaException:
            self._leave()
            raise

    def _join(self) -> None:
        consumer = self._make()
        try:
            self._check_topics(consumer)
        except BaseException:
            consumer.close()
            raise
        consumer.subscribe(self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
        self._consumer = consumer
        deadline = SYSTEM_CLOCK.monotonic() + JOIN_SECONDS
        while not (self._joined or self._closed) and SYSTEM_CLOCK.monotonic() < deadline:
            self._take([consumer.poll(POLL_SECONDS)])

    def _make(self) -> Consumer:
        try:
            return Consumer({**self._config, "error_cb": self._complain, "on_commit": self._committed}, logger=log)
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() != KafkaError._INVALID_ARG:
                raise
            raise ConfigError(f"librdkafka refuses the settings: {self._text(error)}") from None

    def _check_topics(self, consumer: Consumer) -> None:
        for topic in self._topics:
            if topic.startswith("^"):
                consumer.list_topics(timeout=OPEN_SECONDS)
                continue
            error = consumer.list_topics(topic, timeout=OPEN_SECONDS).topics[topic].error
            if error is not None and error.code() != KafkaError.LEADER_NOT_AVAILABLE:
                raise self._unavailable(f"topic {topic!r}: {self._text(error)}")

    def _fill(self, limit: int, wait: float) -> None:
        consumer = self._needed()
        deadline = SYSTEM_CLOCK.monotonic() + wait
        while not (self._ready or self._closed):
            left = deadline - SYSTEM_CLOCK.monotonic()
            if awake := self._paused & self._terms.keys():
                consumer.resume([TopicPartition(*one) for one in awake])
                self._paused -= awake
            self._take([consumer.poll(min(max(left, 0), POLL_SECONDS))])
            if left <= 0:
                break
        if self._ready and limit > 1:
            self._take(consumer.consume(limit - 1, timeout=0))

    def _rest(self) -> None:
        """Nobody receives: poll for the group's sake, and let the brokers send nothing."""
        consumer = self._needed()
        if awake := self._terms.keys() - self._paused:
            consumer.pause([TopicPartition(*one) for one in awake])
            self._paused |= awake
        self._take([consumer.poll(0)])

    def _take(self, found: Sequence[Any]) -> None:
        """All messages before any error is raised: who forgets one does not know where to begin again."""
        failed = None
        for message in found:
            if message is None:
                continue
            if (error := message.error()) is None:
                incoming = self._incoming(message)
                self._floors.setdefault(incoming.receipt.partition, incoming.receipt.offset)
                self._ready.append(incoming)
            elif error.code() not in PASSING:
                failed = error
        if failed is not None and failed.fatal():
            self._trouble = failed
        if failed is not None:
            raise self._unavailable(self._text(failed))
        if self._trouble is not None:
            if self._trouble.fatal():
                raise self._unavailable(self._text(self._trouble))
            self._needed().list_topics(timeout=ANSWER_SECONDS)  # the trouble may be over
            self._trouble = None

    def _commit(self, messages: Sequence[Incoming]) -> None:
        """All that were received up to the last of these, as far as their partitions are still ours."""
        done: dict[Partition, int] = {}
        last = messages[-1].receipt if messages else None
        receipt = None if last in self._given else last
        while receipt != last:
            receipt = self._given.popleft()
            if self._terms.get(receipt.partition) == receipt.term:
                done[receipt.partition] = receipt.offset + 1
        if done:
            self._send_offsets(self._needed(), done)
            self._floors |= {one: offset for one, offset in done.items() if one in self._terms}

    def _send_offsets(self, consumer: Consumer, done: Mapping[Partition, int]) -> None:
        """librdkafka waits for an answer for as long as the brokers are away; we go on polling, and do not."""
        self._answers.clear()
        offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in done.items()]
        consumer.commit(offsets=offsets, asynchronous=True)
        deadline = SYSTEM_CLOCK.monotonic() + COMMIT_SECONDS
        while not self._answers:
            if SYSTEM_CLOCK.monotonic() > deadline:
                raise self._unavailable(f"no answer to a commit in {COMMIT_SECONDS:g} s")
            self._take([consumer.poll(GLANCE_SECONDS)])
        error = self._answers.pop()
        if error is not None and error.code() not in MOVED:
            raise self._unavailable(self._text(error))

    def _leave(self) -> None:
        consumer, self._consumer = self._consumer, None
        self._terms.clear()
        self._floors.clear()
        self._paused.clear()
        self._ready.clear()
        self._given.clear()
        self._joined = False
        if consumer is not None:
            consumer.close()

    def _needed(self) -> Consumer:
        if self._consumer is None:
            raise self._unavailable("not open")
        return self._consumer

    # -- told by librdkafka, while it is polled -----------------------------------------------------

    def _assigned(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._joined = True
        for one in partitions:
            self._last_term += 1
            self._terms[one.topic, one.partition] = self._last_term

    def _revoked(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        for one in partitions:
            self._terms.pop((one.topic, one.partition), None)
            self._floors.pop((one.topic, one.partition), None)
        with self._handing:
            kept = [message for message in self._ready if message.receipt.partition in self._terms]
            self._ready.clear()
            self._ready.extend(kept)

    def _committed(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
        self._answers.append(error or next((one.error for one in partitions if one.error), None))

    def _complain(self, error: KafkaError) -> None:
        if error.fatal() or error.code() in AWAY:
            self._trouble = error
        else:
            log.debug("%r: %s", self, self._text(error))

    # -- messages and errors ------------------------------------------------------------------------

    def _incoming(self, message: Any) -> Incoming:
        partition, offset = (message.topic(), message.partition()), message.offset()
        kind, milliseconds = message.timestamp()
        sent = None if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds
        place, body = f"{partition[0]}/{partition[1]}/{offset}@{sent}", message.value() or b""
        receipt = _Receipt(partition, offset, self._terms.get(partition, 0))

        def read() -> Incoming:
            headers = {name: (value or b"").decode(errors="replace") for name, value in message.headers() or ()}
            return Incoming(
                channel=partition[0],
                place=place,
                body=body,
                headers=headers,
                key=(message.key() or b"").decode(errors="replace") or None,
                content_type=take_content_type(headers),
                sent_at=None if sent is None else moment(sent),
                receipt=receipt,
            )

        return taken(read, channel=partition[0], place=place, body=body, receipt=receipt)

    def _text(self, error: KafkaError) -> str:
        return hide_secrets(error.str(), self._config)
