"""relaybox as a measured system: fill in the hooks, nothing else changes.

Runs as `python -m benchmarks.systems.relaybox_system` in our own virtualenv and speaks the same line
protocol as every peer. Each hook below is a PLACEHOLDER until the API exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from benchmarks.peers.python.peer import Peer, Unsupported, serve

NAME = "relaybox"
NOT_BUILT = "not built yet"


class RelayboxPeer(Peer):
    """Hooks of relaybox. Set `sync_producer = True` and fill `commit_one_sync` for the sync API."""

    version = "0"
    settings: Mapping[str, Any] = MappingProxyType({})

    async def setup(self, fresh: bool) -> None:
        """PLACEHOLDER: connect to self.url; when fresh, migrate and create BUSINESS_TABLE."""
        raise Unsupported(NOT_BUILT)

    async def write_block(self, first: int, count: int, event: bool) -> None:
        """PLACEHOLDER: write_tx. `count` transactions: business row, and Outbox.write if `event`."""
        raise Unsupported(NOT_BUILT)

    async def write_batch(self, first: int, count: int) -> None:
        """PLACEHOLDER: write_batch, and the preload of drain and wal. One transaction, `count` events."""
        raise Unsupported(NOT_BUILT)

    async def start(self) -> None:
        """PLACEHOLDER: drain, latency, wal. Start a dispatcher whose listener calls self.meter.one(body)."""
        raise Unsupported(NOT_BUILT)

    async def stop(self) -> None:
        """PLACEHOLDER: drain, latency, wal. Stop gracefully, acknowledgements written."""
        raise Unsupported(NOT_BUILT)


if __name__ == "__main__":
    serve(RelayboxPeer())
