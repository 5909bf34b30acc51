"""Which messages of an inbox may go first: by their numbers, or by their priority. Pure: no clock, no I/O.

A message has a number among those of its key if it came with the header `sequence`, and a priority if it came with
`priority`. In an ordered inbox a message is

    next        its number is the one its key expects: it is claimed, and so are those that follow without a gap
    ahead       held back until its predecessor is processed
    behind      its number has had its turn: a replay runs beside the sequence, anything else becomes a dead letter

Messages without a number or a key are in no order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, NamedTuple

from ...durations import Duration, DurationField, parse_duration
from ...errors import ConfigError, InvalidEvent, Undecodable
from ...event import Event
from ...ids import key_hash
from ..event_rows import as_text, lane_key, legible

LARGEST = 2**63 - 2
LONGEST = 255  # characters of a key whose messages have numbers
UNRANKED = 0


@dataclass(frozen=True)
class Order:
    """Messages of a key in the order of their numbers.

    start     the first number of a key; None: the lowest that waits when its first message is looked at
    missing   what to do about a number that does not come. "block": wait for it, or for keys.release(). A duration: go
              on without it as soon as the message behind the gap has waited that long
    dead      what to do about a number that became a dead letter. "block": wait for its replay, or for
              keys.release(). "skip": go on
    """

    start: int | None = 1
    missing: Literal["block"] | Duration = "block"
    dead: Literal["block", "skip"] = "block"

    def __post_init__(self) -> None:
        if self.start is not None and (type(self.start) is not int or not 0 <= self.start <= LARGEST):
            raise ConfigError(f"expected start to be a number of at least 0, or None, got {self.start!r}")
        if self.missing != "block":
            patience = parse_duration(self.missing, "missing (or 'block')")
            if patience <= timedelta(0):
                raise ConfigError(f"expected missing to be 'block' or a positive duration, got {self.missing!r}")
            object.__setattr__(self, "missing", patience)
        if self.dead not in ("block", "skip"):
            raise ConfigError(f"expected dead to be 'block' or 'skip', got {self.dead!r}")


@dataclass(frozen=True)
class Tier:
    """Priorities from `low` to `high`. A message counts as having come `patience` later than it did, so a tier with
    less of it goes first, and no message waits behind newer ones for longer than its own patience."""

    name: str
    low: int
    high: int
    patience: DurationField = DurationField("5s")


TIERS = (Tier("critical", 1, 2, "1s"), Tier("normal", 3, 6, "5s"), Tier("background", 7, 9, "30s"))


@dataclass(frozen=True, slots=True)
class Priority:
    """Tiers in which messages are claimed, the most urgent first. `rest` is for messages without a priority, or with
    one that is in no tier: they are delivered like the last tier unless another is named."""

    tiers: Sequence[Tier] = TIERS
    rest: str | None = None
    _patience: Mapping[int, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.tiers:
            raise ConfigError("expected at least one tier; Tier(name, low, high, patience) makes one")
        names = [tier.name for tier in self.tiers]
        if len(set(names)) < len(names):
            raise ConfigError(f"expected every tier to have a name of its own, got {', '.join(names)}")
        patience: dict[int, float] = {}
        for tier in self.tiers:
            if not 1 <= tier.low <= tier.high <= 9:
                raise ConfigError(
                    f"expected tier {tier.name!r} to be within 1 to 9 and not empty, got {tier.low} to {tier.high}"
                )
            if tier.patience < timedelta(0):
                raise ConfigError(f"expected the patience of tier {tier.name!r} to be positive, got {tier.patience}")
            for value in range(tier.low, tier.high + 1):
                if value in patience:
                    raise ConfigError(
                        f"expected tiers not to overlap: priority {value} is in {tier.name!r} and another"
                    )
                patience[value] = tier.patience.total_seconds()
        if self.rest is not None and self.rest not in names:
            raise ConfigError(f"expected rest to be one of {', '.join(names)}, got {self.rest!r}")
        last = self.tiers[-1] if self.rest is None else self.tiers[names.index(self.rest)]
        for value in range(UNRANKED, 10):
            patience.setdefault(value, last.patience.total_seconds())
        object.__setattr__(self, "_patience", patience)

    def values(self) -> Sequence[int]:
        """All priorities that a message can have."""
        return sorted(self._patience)

    def tier_of(self, priority: int) -> Tier:
        """Where a message of this priority is."""
        for tier in self.tiers:
            if tier.low <= priority <= tier.high:
                return tier
        names = [tier.name for tier in self.tiers]
        return self.tiers[-1 if self.rest is None else names.index(self.rest)]

    def first(self, waiting: Mapping[int, Sequence[tuple[int, float]]], limit: int) -> list[int]:
        """The numbers of the most urgent, from (number, seconds waited) by priority."""
        ranked = [
            (self._patience[value] - waited, value, seq) for value, rows in waiting.items() for seq, waited in rows
        ]
        return [seq for _, _, seq in sorted(ranked)[:limit]]


class NumberedMessage(NamedTuple):
    """A numbered message before it is claimed. `expected` is None for a key without a state, and then `lowest` is the
    lowest number of it that waits."""

    seq: int
    key: str
    position: int
    expected: int | None
    lowest: int | None


class Admission(NamedTuple):
    take: list[int]
    hold: list[int]
    begin: dict[str, int]  # keys that get a state, with their first number
    then: dict[str, int]  # what comes after what may be claimed, of keys that move on by it


def admit(rows: Sequence[NumberedMessage], start: int | None) -> Admission:
    """Which messages may be claimed together, each key in the order of its numbers."""
    admission = Admission([], [], {}, {})
    expected: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: (row.position, row.seq)):
        if row.key not in expected:
            first = row.expected
            if first is None:
                first = start if start is not None else min(row.position, row.lowest or row.position)
                if row.position <= first:
                    admission.begin[row.key] = first
            expected[row.key] = first
        if row.position > expected[row.key]:
            admission.hold.append(row.seq)
            continue
        admission.take.append(row.seq)
        if row.position == expected[row.key]:
            admission.then[row.key] = expected[row.key] = row.position + 1
    return admission


def position_of(event: Event) -> int | None:
    """From the header `sequence` (as CloudEvents: `ce_sequence`)."""
    number = _number(event, ("sequence", "ce_sequence"))
    return number if number is not None and number <= LARGEST else None


def place_of(event: Event) -> tuple[int, int | None, int]:
    """How a message waits: the hash of its key, its number, its priority."""
    return key_hash(lane_key(event)), position_of(event), priority_of(event)


def number_in(headers: object) -> int | None:
    """`position_of` an event whose headers are as they are stored."""
    text = legible(headers)
    if text is None or "sequence" not in text:
        return None
    try:
        return position_of(Event("history", None, headers=json.loads(text)))
    except (ValueError, RecursionError, InvalidEvent):
        return None


def numbered_key(key: object) -> str | None:
    """A key as a row has it, if messages of it can have numbers."""
    text = as_text(key)
    return text if text is not None and len(text) <= LONGEST else None


def priority_of(event: Event) -> int:
    """From the header `priority`; 0 when there is none, or one that is not 1 to 9."""
    number = _number(event, ("priority", "ce_priority"))
    return number if number is not None and 1 <= number <= 9 else UNRANKED


def _number(event: Event, names: Sequence[str]) -> int | None:
    text = event.headers_text
    if text is None or names[0] not in text:
        return None
    try:
        found = str(next((event.headers[name] for name in names if name in event.headers), ""))
    except Undecodable:
        return None
    return int(found) if found.isascii() and found.isdigit() and len(found) <= 19 else None
