"""Order of a key over many publishes, and no second copy of an id where the broker can tell."""

from __future__ import annotations

import asyncio

import pytest

from ...brokers.spi import Message, Sink
from .harness import Fixtures, SinkHarness, arrived, messages, publish


class OrderContract(Fixtures):
    async def test_the_order_of_a_key(self, harness: SinkHarness, sink: Sink, destination: str) -> None:
        sent: list[Message] = []
        for round_ in range(20):
            batch = messages(sink, destination, ["a", "b", "c", None], first=4 * round_)
            assert await publish(sink, batch) == [None] * 4
            sent += batch
        await arrived(harness, destination, sent)

    async def test_concurrent_publishes(self, harness: SinkHarness, sink: Sink, destination: str) -> None:
        """Each task has keys of its own, as the relay's lanes do."""

        async def lane(name: str) -> list[Message]:
            sent: list[Message] = []
            for round_ in range(5):
                batch = messages(sink, destination, [f"{name}-{n}" for n in range(4)], first=4 * round_)
                assert await publish(sink, batch) == [None] * 4
                sent += batch
            return sent

        lanes = await asyncio.gather(*(lane(f"lane-{n}") for n in range(10)))
        await arrived(harness, destination, [message for sent in lanes for message in sent])

    async def test_a_sequence_in_one_publish(self, harness: SinkHarness, sink: Sink, destination: str) -> None:
        if not sink.features.sequences:
            pytest.skip("declares sequences=False: the relay sends one message of a key at a time")
        sent = messages(sink, destination, ["a", "b"] * 30)
        assert await publish(sink, sent) == [None] * 60
        await arrived(harness, destination, sent)

    async def test_nothing_passes_a_failure_in_its_sequence(
        self, harness: SinkHarness, sink: Sink, destination: str
    ) -> None:
        if not sink.features.sequences or harness.oversize is None:
            pytest.skip("declares sequences=False, or refuses no message")
        first, other, last = messages(sink, destination, ["a", "b", "a"])
        refused = messages(sink, destination, ["a"], b"x" * harness.oversize)
        answers = await publish(sink, [first, *refused, other, last])
        assert [answer is None for answer in answers] == [True, False, True, False]
        assert await publish(sink, [last]) == [None]
        await arrived(harness, destination, [first, other, last])

    async def test_the_same_id_twice(self, harness: SinkHarness, sink: Sink, destination: str) -> None:
        """A lost reply makes the relay send again; a broker that promises dedup shows one."""
        if not sink.features.dedup:
            pytest.skip("declares dedup=False")
        sent = messages(sink, destination, ["a", "b"])
        assert await publish(sink, sent) == [None, None]
        assert await publish(sink, sent) == [None, None]
        later = messages(sink, destination, ["a", "b"], first=2)
        assert await publish(sink, later) == [None, None]
        await arrived(harness, destination, sent + later)
