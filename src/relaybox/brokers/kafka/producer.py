"""confluent_kafka's producer for one event loop.

No thread of ours takes part. librdkafka calls back for every message, each time with the interpreter's lock: a thread
would fight with the event loop for it. So the loop asks for reports itself, every millisecond while somebody waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Producer

from ..spi import Message

log = logging.getLogger("relaybox")
TICK = 0.001
IDLE = 0.5  # between publishes, for librdkafka's own events: errors, and tokens that run out
QUESTION_SECONDS = 0.5  # nobody can interrupt one, and close() has to wait for it
UNANSWERED = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT)
REFUSED = (KafkaError._AUTHENTICATION, KafkaError._SSL)


class KafkaProducer:
    fatal: KafkaError | None = None  # beyond repair: make another one
    trouble = ""  # what a connection complained about last
    _producer: Producer
    _timer: asyncio.TimerHandle

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._batches: set[_Batch] = set()
        self._questions: set[asyncio.Future[Any]] = set()  # calls into librdkafka, which must not outlive it
        self._waiting = 0
        self._trouble_code = KafkaError.NO_ERROR
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, config: Mapping[str, Any]) -> Self:
        """Does not wait for a connection. Wrong settings raise KafkaException."""
        self = cls()
        full = {**config, "error_cb": self._on_error, "logger": log}
        self._producer = await asyncio.to_thread(Producer, full)  # it reads certificates
        self._timer = self._loop.call_later(IDLE, self._tick)
        return self

    async def send(self, messages: Sequence[Message]) -> list[KafkaError | None]:
        """What became of each message: None if every in-sync replica has it."""
        if self._closing is not None:
            return [KafkaError(KafkaError._DESTROY)] * len(messages)
        if not messages:
            return []
        batch = _Batch(self._producer, self._loop.create_future(), messages)
        self._batches.add(batch)
        try:
            with self._polling():
                batch.send()
                return await batch.done
        except asyncio.CancelledError:
            # The caller may send these again, here or elsewhere: what has not left yet must not follow later.
            batch.abandoned = True
            self._producer.purge(in_queue=True, in_flight=False, blocking=False)
            raise
        finally:
            self._batches.discard(batch)

    async def metadata(self, topic: str | None, seconds: float) -> Any:
        """What a broker says now of one topic or of all. Raises KafkaException."""
        deadline = self._loop.time() + seconds
        with self._polling():
            while True:
                try:
                    return await self._question(topic, min(seconds, QUESTION_SECONDS))
                except KafkaException as error:
                    waiting_helps = error.args[0].code() in UNANSWERED and self._trouble_code not in REFUSED
                    if not waiting_helps or self._loop.time() >= deadline:
                        raise

    async def _question(self, topic: str | None, seconds: float) -> Any:
        if self._closing is not None:
            raise KafkaException(KafkaError(KafkaError._DESTROY))
        question = self._loop.run_in_executor(None, self._producer.list_topics, topic, seconds)
        self._questions.add(question)
        question.add_done_callback(self._questions.discard)
        answer = await asyncio.shield(question)
        self.trouble, self._trouble_code = "", KafkaError.NO_ERROR
        return answer

    async def close(self) -> None:
        """What nobody has reported yet has failed."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._timer.cancel()
        self._producer.purge(blocking=False)  # first: who is told of a failure may send again, elsewhere
        for batch in self._batches:
            batch.give_up()
        if self._questions:
            await asyncio.wait(self._questions)
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        self._producer.purge()  # what is left would be waited for
        self._producer.close()

    # Reports

    @contextmanager
    def _polling(self) -> Iterator[None]:
        self._waiting += 1
        if self._waiting == 1:
            self._tick()
        try:
            yield
        finally:
            self._waiting -= 1

    def _tick(self) -> None:
        self._timer.cancel()
        if self._closing is None:
            self._timer = self._loop.call_later(TICK if self._waiting else IDLE, self._tick)
            try:
                self._producer.poll(0)
            except KafkaException as error:
                self.fatal = error.args[0]

    def _on_error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # which says less than the error before it
            self.trouble = error.str()
            self._trouble_code = error.code()


class _Batch:
    """The messages of one call, and what is known of them."""

    abandoned = False

    def __init__(
        self, producer: Producer, done: asyncio.Future[list[KafkaError | None]], messages: Sequence[Message]
    ) -> None:
        self.done = done
        self._producer = producer
        self._messages = messages
        self._reports: list[KafkaError | None] = [KafkaError(KafkaError._PURGE_INFLIGHT)] * len(messages)
        self._left = len(messages)

    def send(self) -> None:
        for number, message in enumerate(self._messages):
            self._produce(number, message)

    def _produce(self, number: int, message: Message) -> None:
        try:
            self._producer.produce(
                message.destination,
                None if message.tombstone else message.body,
                message.key,
                headers=[*message.attributes.items(), ("content-type", message.content_type)],
                on_delivery=partial(self._report, number),
            )
        except KafkaException as error:
            self._report(number, error.args[0], None)
        except BufferError:
            self._report(number, KafkaError(KafkaError._QUEUE_FULL), None)

    def _report(self, number: int, error: KafkaError | None, _: object) -> None:
        if error is not None and error.code() == KafkaError._PURGE_QUEUE and not self.abandoned:
            self._produce(number, self._messages[number])  # it was not meant: another call was cancelled
            return
        self._reports[number] = error
        self._left -= 1
        if not self._left:
            self.give_up()

    def give_up(self) -> None:
        self.abandoned = True
        if not self.done.done():
            self.done.set_result(self._reports)
