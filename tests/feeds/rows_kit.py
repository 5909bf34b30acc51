"""A feed whose deltas a relay sends as messages, and what a consumer of a compacted topic makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any, NamedTuple

from kit import rows
from relaybox import AsyncOutbox, AsyncRelay, Feed, Outbox, Retry, Settings, StartFrom
from relaybox.types import DeliverySettings, RelaySettings

QUICK = Settings(
    delivery=DeliverySettings(instance_ttl="1s", lease="3s"),
    relay=RelaySettings(batch=50, retry=Retry(base="5ms", max="20ms")),
)
CREATE = """CREATE TABLE item (shop integer, code text, price numeric, big bigint, at timestamptz, note json,
                               PRIMARY KEY (shop, code))"""
QUERY = "SELECT shop, code, price, big, at, note FROM item"


def make(box: Outbox, url: str, name: str = "items", **options: Any) -> None:
    rows(url, CREATE)
    box.feeds.create(Feed(name, QUERY, key=("shop", "code"), **{"sources": {"item": ("shop", "code")}, **options}))


def fill(url: str, first: int, last: int) -> None:
    """Rows with what a parser that knows floats only would spoil."""
    rows(
        url,
        f"""INSERT INTO item SELECT n % 7, 'c"' || n, n + 0.10, 9007199254740993 + n, now(),
                   '{{"a" :  1.50, "é": [1e400]}}' FROM generate_series({first}, {last}) n""",
    )


def relay(url: str, sink: Any, name: str = "items", **options: Any) -> AsyncRelay:
    topic, group = options.pop("topic", name), options.pop("group", "broker")
    source = AsyncOutbox(url).topics.group(topic, group, start=StartFrom.earliest())
    return AsyncRelay(source, sink, **{"to": "rows", "feed": name, "rows": True, "settings": QUICK, **options})


class Sent(NamedTuple):
    """A message as a consumer has it."""

    key: str
    body: bytes | None
    headers: dict[str, str]

    @property
    def op(self) -> str:
        return "tombstone" if self.body is None else str(json.loads(self.body)["op"])

    @property
    def n(self) -> int:
        return int(self.headers["feed-n"])


def compacted(messages: Iterable[Sent]) -> dict[str, bytes | None]:
    """The last of each key, as the broker's cleaner leaves it; and no tombstones."""
    last = {message.key: message.body for message in messages}
    return {key: body for key, body in last.items() if body is not None}


def as_table(messages: Iterable[Sent]) -> list[str]:
    """The rows that a consumer of the compacted topic has, as text."""
    return sorted(_after(body) for body in compacted(messages).values() if body is not None)


def _after(body: bytes) -> str:
    text = body.decode()
    return text[text.index('"after":') + 8 : text.rindex(',"feed":')]


def table(url: str, relation: str = "feed_items") -> list[str]:
    return sorted(row for (row,) in rows(url, f"SELECT row_to_json(m)::text FROM {relation} m"))


def exact(body: bytes) -> Any:
    return json.loads(body, parse_float=Decimal)


def firsts(messages: Iterable[Sent]) -> Iterator[Sent]:
    """Without what came again: by id, and a tombstone has the id of its row."""
    seen: set[tuple[str, bool]] = set()
    for message in messages:
        if (mark := (message.headers["event_id"], message.body is None)) not in seen:
            seen.add(mark)
            yield message
