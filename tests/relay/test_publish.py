"""What goes out is still ours: looked at again whenever time has passed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from relaybox import Event
from relaybox.engine.protocols import Delivery
from relaybox.facts import Observers
from relaybox.relay.circuit import Circuit
from relaybox.relay.publish import SLOW, Publisher
from relaybox.spi import Answer, Features, Message
from relaybox.testing.clock import ManualClock


class Sink:
    name = "memory"
    features = Features(keyed_order=True, dedup=False)

    def __init__(self) -> None:
        self.sent: list[str] = []

    async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
        self.sent += [message.id for message in messages]
        return [None] * len(messages)

    async def open(self) -> None: ...

    async def probe(self) -> None: ...

    async def close(self) -> None: ...


class Batch:
    """Of two deliveries the second is another's as soon as anything is awaited."""

    def __init__(self) -> None:
        self.mine = [Delivery(Event("E", n, id=f"id-{n}"), n, 1, 1, 1e9, hot=False) for n in (1, 2)]
        self.asked = 0

    async def waiting(self) -> list[Delivery]:
        self.asked += 1
        if self.asked > 1:
            self.mine = self.mine[:1]
        return list(self.mine)

    def done(self, delivery: Delivery) -> None:
        self.mine.remove(delivery)

    def done_all(self, deliveries: Sequence[Delivery]) -> None:
        self.mine = [delivery for delivery in self.mine if delivery not in deliveries]

    def failed(self, delivery: Delivery, error: BaseException) -> None:
        self.mine.remove(delivery)


@pytest.mark.parametrize("took", [0.0, SLOW], ids=["at once", "slowly"])
async def test_what_was_lost_while_messages_were_made_does_not_go_out(took: float) -> None:
    clock, sink, batch = ManualClock(), Sink(), Batch()

    def prepare(event: Event) -> Message:
        clock.advance(timedelta(seconds=took))
        return Message(event, "there", None, event.body, event.content_type, {})

    circuit = Circuit(sink.name, sink.probe, Observers(), clock)
    publisher = Publisher(
        sink, prepare, circuit, size=10, timeout=timedelta(seconds=9), observers=Observers(), clock=clock
    )
    await publisher.handle(batch)
    assert sink.sent == (["id-1"] if took else ["id-1", "id-2"])
