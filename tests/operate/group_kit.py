"""Groups of topics with events in every state, for each way that a topic is tracked."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, ClassVar

from relaybox import AsyncOutbox, Event, Outbox, Retry, StartFrom, Topic

from .kit import Desk


class GroupDesk(Desk):
    engines = ("postgres",)
    topic: ClassVar[Topic]
    name = "mail"
    options: ClassVar[dict[str, Any]] = {"ordered": False, "on_exhausted": "park"}

    def opened(self, **options: Any) -> Any:
        self.theirs = Outbox(self.url)
        self.theirs.topics.configure(self.topic)
        self._with(10).create(if_not_exists=True)
        outbox = (AsyncOutbox if self.is_async else Outbox)(self.url, **options)
        group: Any = outbox.topics.group(self.topic.name, self.name)
        group.audit, group.close = outbox.audit, outbox.close
        return group

    async def call(self, name: str, *args: Any, **options: Any) -> Any:
        answer = await super().call(name, *args, **options)
        return [entry for entry in answer if entry.verb != "configure"] if name == "audit" else answer

    async def close(self) -> None:
        await super().close()
        self.theirs.close()

    def _with(self, attempts: int) -> Any:
        retry = Retry(attempts=attempts, delay=lambda _: 0)
        start = StartFrom.earliest()
        return self.theirs.topics.group(self.topic.name, self.name, start=start, retry=retry, **self.options)

    def write(self, *events: Event) -> None:
        with closing(Outbox(self.url)) as box, box.transaction() as tx:
            box.write_all(tx, [_for(event, self.topic.name) for event in events])

    def _settle(
        self, events: Sequence[Event] | None, written: bool, attempts: int, failed: Callable[[Event], Any]
    ) -> None:
        if not written:
            self.write(*(events or ()))
        done = 0
        with self._with(attempts).consumer() as consumer:
            while batch := consumer.poll(10_000):
                ours = [event for event in batch if events is None or event in events]
                errors = {event: error for event in ours if (error := failed(event)) is not None}
                consumer.commit(batch, failed=errors, done=ours)
                done += len(ours)
                if done == len(events or ()):
                    break
            assert events is None or done == len(events)

    def kill(self, *events: Event, error: str = "ValueError: no", written: bool = False) -> None:
        self._settle(events, written, 1, lambda event: _error(error))

    def kill_due(self) -> None:
        self._settle(None, True, 1, lambda event: _error("again"))

    def finish(self, *events: Event, written: bool = False) -> None:
        self._settle(events, written, 10, lambda event: None)

    def fail(self, *events: Event, error: str = "ValueError: no") -> None:
        self._settle(events, False, 10, lambda event: _error(error))

    def claim(self) -> list[str]:
        return [event.id for event in self._with(10).consumer("holder").poll(1000)]


def _for(event: Event, topic: str) -> Event:
    """The same event, to a topic."""
    return Event(
        event.type,
        event.payload,
        id=event.id,
        key=event.key,
        tenant=event.tenant,
        aggregate_type=event.aggregate_type,
        topic=topic,
    )


def _error(text: str) -> Exception:
    name, _, told = text.rpartition(": ")
    made: Exception = getattr(builtins, name or "ValueError")(told)
    return made


class QueueDesk(GroupDesk):
    """A queue of rows, which is an outbox of its own."""

    topic = Topic.queue("jobs")
    name = "default"


class LogDesk(GroupDesk):
    log = True
    topic = Topic.pub_sub("orders", shards=4)


class LogQueueDesk(LogDesk):
    topic = Topic.queue("jobs", tracking="offset", shards=4)
    name = "default"


class BitmapDesk(LogDesk):
    topic = Topic.pub_sub("orders", tracking="bitmap", shards=4)


class AcksDesk(LogDesk):
    topic = Topic.pub_sub("orders", tracking="acks", shards=4)


GROUP_DESKS: dict[str, type[Desk]] = {
    "rows": QueueDesk,
    "offset": LogDesk,
    "log-queue": LogQueueDesk,
    "bitmap": BitmapDesk,
    "acks": AcksDesk,
}
