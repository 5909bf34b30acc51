"""The broker goes away and comes back: no attempt is counted, nothing is lost, no old copy overtakes a new message."""

from __future__ import annotations

import asyncio

import pytest

from ...brokers.spi import Message, Sink
from ...errors import BrokerUnavailable
from .harness import (
    PROBE_SECONDS,
    RESUME_SECONDS,
    Fixtures,
    SinkHarness,
    arrived,
    away,
    deliver,
    messages,
    probe,
    publish,
    until_back,
)


class OutageContract(Fixtures):
    async def test_a_probe_of_a_broker_that_is_there(self, sink: Sink) -> None:
        assert await probe(sink) is None

    async def test_an_outage(self, harness: SinkHarness, sink: Sink, destination: str) -> None:
        before = messages(sink, destination, ["a", "b"])
        during = messages(sink, destination, ["a", "b", "c"], first=2)
        after = messages(sink, destination, ["a", "b", "c"], first=5)
        assert await publish(sink, before) == [None, None]
        async with away(harness):
            for _ in range(2):  # the second finds a sink that knows already
                answers = await publish(sink, during)
                assert [type(answer) for answer in answers] == [BrokerUnavailable] * 3
                assert isinstance(await probe(sink), BrokerUnavailable)
        await until_back(sink, RESUME_SECONDS)
        assert await publish(sink, during) == [None] * 3
        assert await publish(sink, after) == [None] * 3
        await arrived(harness, destination, before + during + after, repeated=not sink.features.dedup)

    async def test_an_outage_under_load(self, harness: SinkHarness, sink: Sink, destination: str) -> None:
        """Publishes are under way when the broker goes and when it returns."""
        sent: list[Message] = []
        rounds = asyncio.Condition()
        stop = False

        async def load() -> None:
            while not stop:
                batch = messages(sink, destination, [f"key-{n}" for n in range(20)], first=len(sent))
                sent.extend(batch)
                await deliver(sink, batch)
                async with rounds:
                    rounds.notify_all()

        async def some_rounds(count: int) -> None:
            async with rounds:
                for _ in range(count):
                    await rounds.wait()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load())
            await some_rounds(5)
            async with away(harness):
                while await probe(sink) is None:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            await some_rounds(5)
            stop = True
        await arrived(harness, destination, sent, repeated=not sink.features.dedup)

    async def test_opening_while_the_broker_is_away(self, harness: SinkHarness, destination: str) -> None:
        sink = harness.sink()
        async with away(harness):
            with pytest.raises(BrokerUnavailable):
                async with asyncio.timeout(2 * PROBE_SECONDS):
                    await sink.open()
        await sink.open()
        sent = messages(sink, destination, ["a"])
        assert await publish(sink, sent) == [None]
        await sink.close()
        await arrived(harness, destination, sent)

    async def test_closing_while_the_broker_is_away(self, harness: SinkHarness, destination: str) -> None:
        sink = harness.sink()
        await sink.open()
        async with away(harness):
            pending = asyncio.create_task(publish(sink, messages(sink, destination, ["a"])))
            await asyncio.sleep(0)
            async with asyncio.timeout(PROBE_SECONDS):
                await sink.close()
            [answer] = await pending
            assert isinstance(answer, BrokerUnavailable)

    @pytest.mark.parametrize("steps", [0, 1, 2, 5, 20])
    async def test_a_cancelled_publish(self, harness: SinkHarness, sink: Sink, destination: str, steps: int) -> None:
        """The relay sends the same messages again: the cancelled copies must not come behind their successors."""
        first = messages(sink, destination, [f"key-{n}" for n in range(10)])
        task = asyncio.create_task(sink.publish(first))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        second = messages(sink, destination, [f"key-{n}" for n in range(10)], first=10)
        await deliver(sink, first)
        await deliver(sink, second)
        await arrived(harness, destination, first + second, repeated=not sink.features.dedup)

    async def test_cancelling_one_leaves_the_others(self, harness: SinkHarness, sink: Sink, destination: str) -> None:
        sent = messages(sink, destination, [f"key-{n}" for n in range(10)])
        tasks = [asyncio.create_task(publish(sink, [message])) for message in sent]
        await asyncio.sleep(0)
        tasks[3].cancel()
        await asyncio.wait(tasks)
        for number, task in enumerate(tasks):
            if number != 3:
                assert [answer is None or isinstance(answer, BrokerUnavailable) for answer in task.result()] == [True]
        await deliver(sink, [m for m, task in zip(sent, tasks, strict=True) if task.cancelled() or task.result()[0]])
        await arrived(harness, destination, sent, repeated=not sink.features.dedup)
