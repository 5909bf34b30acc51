"""A Kafka of our own behind a gate: an outage costs no restart, and a member that died is found out soon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from relaybox.testing.servers import TcpGate
from relaybox.testing.servers.kafka import KafkaServer

SESSION = "session_timeout=1s"  # of members; the broker's least is six unless told otherwise


class KafkaBehindGate(KafkaServer):
    """Clients know the gate's address only."""

    def __init__(self) -> None:
        self.gate = TcpGate()
        settings = {"advertised.listeners": f"PLAINTEXT://{self.bootstrap}", "group.min.session.timeout.ms": "1000"}
        super().__init__(settings=settings)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.gate.port}"

    def create_topic(self, name: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
        """Returns when the broker knows it, and not only its controller."""
        super().create_topic(name, partitions, settings)
        while len(self._client().list_topics(name, timeout=10).topics[name].partitions) < partitions:
            pass

    def close(self) -> None:
        super().close()
        self.gate.close()

    def _command(self) -> Sequence[str | Path]:
        self.gate.target_port = self.port
        return super()._command()
