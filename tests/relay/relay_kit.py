"""Events in an outbox, and relays that try again at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from relaybox import Event, Outbox, Retry, Settings
from relaybox.types import RelaySettings


def write(url: str, events: Sequence[Event]) -> None:
    with Outbox(url) as box, box.transaction() as tx:
        box.write_all(tx, list(events))


def numbered(count: int, keys: int) -> list[Event]:
    return [Event("T", n, key=f"k{n % keys}") for n in range(count)]


def settings(changes: Mapping[str, Any] = MappingProxyType({})) -> Settings:
    """By path."""
    retry = Retry(attempts=25, base="1ms", max="1ms")
    return Settings(relay=RelaySettings(retry=retry)).replaced(changes)
