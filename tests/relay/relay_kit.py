"""Events in an outbox."""

from __future__ import annotations

from collections.abc import Sequence

from relaybox import Event, Outbox


def write(url: str, events: Sequence[Event]) -> None:
    with Outbox(url) as box, box.transaction() as tx:
        box.write_all(tx, list(events))


def numbered(count: int, keys: int) -> list[Event]:
    return [Event("T", n, key=f"k{n % keys}") for n in range(count)]
