"""What is sent is what arrives: bytes, attributes, content type, id and key."""

from __future__ import annotations

import pytest

from ...brokers.spi import Sink
from .harness import Fixtures, SinkHarness, arrived, messages, publish

BODIES = {
    "empty": b"",
    "one NUL": b"\x00",
    "every byte": bytes(range(256)) * 4,
    "text": '{"city": "Zürich", "ok": "✓", "spaces":  "kept "}\n'.encode(),
    "200 kB": b"0123456789abcdef" * 12_800,
}


class ContentContract(Fixtures):
    @pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
    async def test_bytes_arrive_as_they_were_sent(
        self, harness: SinkHarness, sink: Sink, destination: str, body: bytes
    ) -> None:
        sent = messages(sink, destination, ["a"], body)
        assert await publish(sink, sent) == [None]
        [received] = await arrived(harness, destination, sent)
        assert received.body == body

    async def test_attributes_arrive(self, harness: SinkHarness, sink: Sink, destination: str) -> None:
        [message] = sent = messages(sink, destination, ["order-7"])
        assert await publish(sink, sent) == [None]
        [received] = await arrived(harness, destination, sent)
        assert received.id == message.id
        assert received.key == "order-7"
        assert received.content_type == "application/json"
        names = {"event_id", "event_type", "aggregate_type", "aggregate_id", "created_at", "traceparent"}
        assert set(message.attributes) == names
        assert {name: received.attributes.get(name) for name in names} == message.attributes

    async def test_any_key_and_content_type(self, harness: SinkHarness, sink: Sink, destination: str) -> None:
        keys = ["ключ", "with space", "a/b?c#d%20", "e" * 128, None]
        sent = [
            message._replace(content_type="application/x-protobuf; proto=shop.Order")
            for message in messages(sink, destination, keys, b"\x08\x96\x01")
        ]
        assert await publish(sink, sent) == [None] * len(keys)
        found = {received.id: received for received in await arrived(harness, destination, sent)}
        assert [found[message.id].key for message in sent] == keys
        assert {received.content_type for received in found.values()} == {"application/x-protobuf; proto=shop.Order"}

    async def test_a_whole_batch(self, harness: SinkHarness, sink: Sink, destination: str) -> None:
        sent = messages(sink, destination, [f"key-{n}" for n in range(sink.features.batch)])
        assert await publish(sink, sent) == [None] * len(sent)
        bodies = {received.id: received.body for received in await arrived(harness, destination, sent)}
        assert bodies == {message.id: message.body for message in sent}

    async def test_an_empty_batch(self, sink: Sink) -> None:
        assert await publish(sink, []) == []
