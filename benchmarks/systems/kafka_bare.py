"""confluent-kafka alone: the messages a relay would send, ready in memory, produced with the same guarantees."""

from __future__ import annotations

import time
from types import MappingProxyType

import confluent_kafka

from benchmarks.peers.python.peer import Peer, key, payload_bytes, serve
from relaybox import Event
from relaybox.brokers.formats import renderer
from relaybox.brokers.kafka import KafkaSink


class BareProducer(Peer):
    version = f"confluent-kafka {confluent_kafka.version()}"
    settings = MappingProxyType(
        {"producer": "idempotent, acks all, linger 5 ms", "reports": "a callback per message", "database": "none"}
    )

    async def setup(self, fresh: bool) -> None:
        self.failed = 0
        self.producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.options["bootstrap"],
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "partitioner": "murmur2_random",
            }
        )
        self.producer.list_topics(self.options["topic"], timeout=10)

    async def hold(self, total: int, keys: int) -> None:
        render = renderer("plain", "bench", KafkaSink.features)
        self.ready = []
        for seq in range(self.options["number"], total, self.options["processes"]):
            event = Event("order.placed", payload_json=payload_bytes(seq).decode(), key=key(seq, keys))
            message = render(event, self.options["topic"])
            headers: dict[str, str | bytes | None] = {**message.attributes, "content-type": message.content_type}
            self.ready.append((message.body, message.key, headers))

    async def commit(self) -> float:
        began, topic, produce, poll = time.time(), self.options["topic"], self.producer.produce, self.producer.poll
        for body, name, headers in self.ready:
            while True:
                try:
                    produce(topic, body, name, headers=headers, on_delivery=self._report)
                    break
                except BufferError:
                    poll(0.01)
            poll(0)
        self.producer.flush()
        if self.failed:
            raise RuntimeError(f"{self.failed} messages were not delivered")
        return began

    def _report(self, error: object, _: object) -> None:
        if error is not None:
            self.failed += 1


if __name__ == "__main__":
    serve(BareProducer())
