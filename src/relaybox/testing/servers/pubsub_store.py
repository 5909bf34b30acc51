"""What the Pub/Sub stand-in remembers: topics, subscriptions, backlogs; in memory and in an append-only file."""

from __future__ import annotations

import base64
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.pubsub_v1 import types
from grpc import StatusCode

from relaybox.clock import utc_now


class CallRefused(Exception):
    """An answer other than OK."""

    def __init__(self, code: StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass
class Item:
    """One message in one subscription's backlog."""

    message: types.PubsubMessage
    deliveries: int = 0
    leased_until: float = 0.0

    @property
    def ack_id(self) -> str:
        return f"{self.message.message_id}:{self.deliveries}"


@dataclass
class Backlog:
    """The unacknowledged messages of a subscription, oldest first."""

    subscription: types.Subscription
    items: dict[str, Item] = field(default_factory=dict)

    def take(self, limit: int, seconds: float) -> list[types.ReceivedMessage]:
        """Lease what may be delivered now.

        With ordering, a key waits while one of its messages is leased; when an earlier one comes again, so do all
        that follow it.
        """
        now = time.monotonic()
        waiting: set[str] = set()
        started: set[str] = set()
        taken: list[types.ReceivedMessage] = []
        for item in self.items.values():
            key = item.message.ordering_key if self.subscription.enable_message_ordering else ""
            if key in waiting:
                continue
            if item.leased_until > now and key not in started:
                if key:
                    waiting.add(key)
                continue
            if len(taken) == limit:
                break
            if key:
                started.add(key)
            item.deliveries += 1
            item.leased_until = now + seconds
            taken.append(types.ReceivedMessage(ack_id=item.ack_id, message=item.message))
        return taken

    def leased(self, ack_ids: Sequence[str]) -> Iterator[Item]:
        """The items of these ids; an id of a former delivery names none."""
        for ack_id in ack_ids:
            item = self.items.get(ack_id.partition(":")[0])
            if item is not None and item.ack_id == ack_id:
                yield item


class Store:
    """Every change is written to `journal` before it counts, and read again from there at the start.

    Leases are not written: after a restart every unacknowledged message is delivered again.
    """

    def __init__(self, journal: Path) -> None:
        self._changed = threading.Condition()
        self._topics: set[str] = set()
        self._backlogs: dict[str, Backlog] = {}
        self._last_id = 0
        self._steps: dict[str, Callable[..., None]] = {
            "create_topic": self._topics.add,
            "delete_topic": self._topics.discard,
            "create_subscription": self._create_subscription,
            "delete_subscription": self._backlogs.__delitem__,
            "publish": self._publish,
            "acknowledge": self._acknowledge,
        }
        whole = 0
        for line in journal.read_bytes().splitlines(keepends=True) if journal.exists() else ():
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            step, *arguments = json.loads(line)
            self._steps[step](*arguments)
        self._journal = journal.open("ab", buffering=0)
        self._journal.truncate(whole)  # half a line is what a kill in the middle of a write leaves behind

    def create_topic(self, name: str) -> None:
        with self._changed:
            if name in self._topics:
                raise CallRefused(StatusCode.ALREADY_EXISTS, f"topic {name} exists")
            self._change("create_topic", name)

    def check_topic(self, name: str) -> None:
        if name not in self._topics:
            raise CallRefused(StatusCode.NOT_FOUND, f"no topic {name}")

    def delete_topic(self, name: str) -> None:
        with self._changed:
            self.check_topic(name)
            self._change("delete_topic", name)

    def create_subscription(self, subscription: types.Subscription) -> None:
        with self._changed:
            self.check_topic(subscription.topic)
            if subscription.name in self._backlogs:
                raise CallRefused(StatusCode.ALREADY_EXISTS, f"subscription {subscription.name} exists")
            self._change("create_subscription", _packed(subscription))

    def subscription(self, name: str) -> types.Subscription:
        return self._backlog(name).subscription

    def delete_subscription(self, name: str) -> None:
        with self._changed:
            self._backlog(name)
            self._change("delete_subscription", name)

    def publish(self, topic: str, messages: Sequence[types.PubsubMessage]) -> list[str]:
        """All of them or none."""
        with self._changed:
            self.check_topic(topic)
            now = utc_now()
            for number, message in enumerate(messages, self._last_id + 1):
                message.message_id = str(number)
                message.publish_time = now
            self._change("publish", topic, [_packed(message) for message in messages])
            self._changed.notify_all()
            return [message.message_id for message in messages]

    def pull(self, name: str, limit: int, wait: float, seconds: float = 0) -> list[types.ReceivedMessage]:
        """Up to `limit` messages, leased for `seconds` (0: as the subscription says); may wait for the first."""
        deadline = time.monotonic() + wait
        with self._changed:
            while True:
                backlog = self._backlog(name)
                taken = backlog.take(limit, seconds or backlog.subscription.ack_deadline_seconds)
                left = deadline - time.monotonic()
                if taken or left <= 0:
                    return taken
                self._changed.wait(min(left, 0.1))  # leases run out without telling anybody

    def acknowledge(self, name: str, ack_ids: Sequence[str]) -> None:
        with self._changed:
            known = [item.message.message_id for item in self._backlog(name).leased(ack_ids)]
            if known:
                self._change("acknowledge", name, known)
                self._changed.notify_all()

    def extend(self, name: str, ack_ids: Sequence[str], seconds: float) -> None:
        """New ack deadlines; 0 gives the messages back."""
        with self._changed:
            for item in self._backlog(name).leased(ack_ids):
                item.leased_until = time.monotonic() + seconds if seconds else 0.0
            self._changed.notify_all()

    def _change(self, step: str, *arguments: Any) -> None:
        self._journal.write(json.dumps([step, *arguments]).encode() + b"\n")
        self._steps[step](*arguments)

    def _backlog(self, name: str) -> Backlog:
        try:
            return self._backlogs[name]
        except KeyError:
            raise CallRefused(StatusCode.NOT_FOUND, f"no subscription {name}") from None

    # The steps of the journal

    def _create_subscription(self, packed: str) -> None:
        subscription = types.Subscription.deserialize(base64.b64decode(packed))
        self._backlogs[subscription.name] = Backlog(subscription)

    def _publish(self, topic: str, packed: list[str]) -> None:
        messages = [types.PubsubMessage.deserialize(base64.b64decode(each)) for each in packed]
        readers = [backlog for backlog in self._backlogs.values() if backlog.subscription.topic == topic]
        for backlog, message in itertools.product(readers, messages):
            backlog.items[message.message_id] = Item(message)
        self._last_id += len(messages)

    def _acknowledge(self, name: str, message_ids: list[str]) -> None:
        for message_id in message_ids:
            self._backlogs[name].items.pop(message_id, None)


def _packed(message: types.PubsubMessage | types.Subscription) -> str:
    return base64.b64encode(type(message).serialize(message)).decode()
