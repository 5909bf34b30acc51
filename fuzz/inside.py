"""What lies in tables, what a program is given, and what its operators write."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from unicodedata import category
from uuid import UUID

from relaybox import Contracts, Event
from relaybox.brokers.formats import renderer
from relaybox.brokers.spi import Features
from relaybox.contracts import Contract
from relaybox.drivers import parse
from relaybox.errors import ConfigError, ContractViolation, InvalidEvent, Undecodable
from relaybox.redaction import masked
from relaybox.store.event_rows import checked, unreadable

from .arriving import CORPUS, message, text

CANARY = "c4nary"


class Colour(Enum):
    RED = "red"


@dataclass
class Order:
    n: int | Decimal
    name: str | float | None = None
    at: datetime | date | UUID | None = None
    colour: Colour | Literal[1, "x"] | None = None
    more: dict[str, list[Order]] | set[int] | None = None


SCHEMAS: list[Any] = [
    Order,
    {
        "type": "object",
        "properties": {"n": {"multipleOf": 0.25, "maximum": 1e9}, "name": {"pattern": "^(x|x)*$", "minLength": 1}},
        "patternProperties": {"^d": {"uniqueItems": True, "contains": {"const": 1}}},
        "additionalProperties": {"anyOf": [{"$ref": "#"}, {"type": ["string", "array"]}]},
    },
    {"allOf": [{"properties": {"n": {"enum": [1, 2.5, None]}}}], "unevaluatedProperties": False},
    {"prefixItems": [{"multipleOf": 3}], "unevaluatedItems": {"type": "integer"}},
    None,
]
_known = [Contracts().add("Order", to="o", key_required=False, payload=schema) for schema in SCHEMAS]
_renderers = [
    renderer(
        form,
        "https://shop.example",
        Features(keyed_order=True, dedup=None, attribute_prefix="ce_", percent_encoded=encoded),
    )
    for form in ("plain", "cloudevents", "cloudevents-structured")
    for encoded in (False, True)
]


def contracts(random: random.Random) -> None:
    made: Contract = random.choice(_known)
    with suppress(ContractViolation):
        made.model.read(message(random)[0])


def events(random: random.Random) -> None:
    """What a program is given by a stranger and makes an event of."""
    body, headers, kind = message(random)
    with suppress(InvalidEvent):
        event = Event(text(random, "T"), payload_bytes=body, id=text(random, "i"), key=text(random, "k"),
                      tenant=text(random, "t"), headers=headers, content_type=kind)  # fmt: skip
        assert not any(category(sign) in ("Cc", "Zl", "Zp") for sign in event.id + event.type)
        (event.id + event.type + (event.key or "") + (event.headers_text or "")).encode()


def stored(random: random.Random) -> None:
    """A row that anybody may have written is an event or a dead letter, also for a sink."""
    body, headers, kind = message(random)
    texts = [text(random, word) for word in ("id", "T", "agg", "k", "t")]
    texts += [kind, random.choice((json.dumps(headers), text(random, '{"a": "b"}')))]
    texts = [each.encode(errors="replace").decode() for each in texts]  # no database has half a character
    values: list[Any] = [7, *texts[:6], body, texts[6]]
    for place in random.sample(range(1, 9), random.choice((0, 0, 1, 3))):
        values[place] = random.choice((None, random.randbytes(8), 17, 1e300, "x"))
    now = datetime.now(UTC)
    row = [*values, random.choice((now, random.randbytes(8))), None, now]
    try:
        found = checked(row)
    except ValueError as error:
        found = unreadable(row, str(error))
    event = Event.stored(found)
    repr(event)
    if event.unreadable is not None or event.body is None:
        return
    for use in (lambda: event.headers, lambda: event.payload, lambda: event.occurred_at, lambda: event.topic):
        with suppress(Undecodable):
            use()
    with suppress(Undecodable, InvalidEvent):
        random.choice(_renderers)(event, "d")


def urls(random: random.Random) -> None:
    """A password is not shown, however the URL is spoiled."""
    url = random.choice(CORPUS["urls"])
    for _ in range(random.choice((0, 1, 1, 2))):
        at = random.randint(0, len(url))
        if not inside(url, at):
            put = random.choice(CORPUS["spoiling"])
            url = url[:at] + put + url[at + random.choice((0, 1)) * (not inside(url, at + 1)) :]
    if CANARY not in url:
        return
    assert CANARY not in masked(url), url
    said = ""
    try:
        said = repr(parse(url))
    except ConfigError as error:
        said = str(error)
    assert CANARY not in said, url


def inside(url: str, at: int) -> bool:
    """Whether something put there would break the password, or make it a part of the user's name."""
    start = url.find(CANARY)
    return start - 1 <= at < start + len(CANARY)
