"""What a topic is: semantics, how completion is tracked, and how long things are kept. Pure.

    Topic.queue("jobs")                                  each event to one consumer, state per row
    Topic.queue("clicks", tracking="offset")             the same on a log: faster, nothing written per event
    Topic.pub_sub("orders", timedelta(days=7))           each event to every group
    Topic.pub_sub("payments").critical()                 and never one that nobody is there to receive

Every topic has tables of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, Final, Literal, TypedDict, Unpack, get_args

from .errors import ConfigError, InvalidEvent
from .event import check_topic

Semantics = Literal["queue", "pub_sub"]
Tracking = Literal["rows", "offset", "bitmap", "acks"]
Partitions = Literal["none", "day", "month"]

MAX_BITMAP_GROUPS: Final = 64
_LONGEST = timedelta(days=36_500)
_WORDS = {"semantics": Semantics, "tracking": Tracking, "partitions": Partitions}
_TRACKINGS = {"queue": ("rows", "offset"), "pub_sub": ("offset", "bitmap", "acks")}


class _MoreOptions(TypedDict, total=False):
    zero_retention: timedelta
    max_retention: timedelta
    zombie_ttl: timedelta
    block_writes: bool
    partitions: Partitions
    shards: int
    heartbeat_interval: timedelta
    heartbeat_timeout: timedelta
    fetch_batch: int
    cleanup_batch: int


class TopicOptions(_MoreOptions, total=False):
    retention: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """What a topic is: who gets its events, how it is remembered who has them, and how long they are kept."""

    name: str
    semantics: Semantics = "queue"
    tracking: Tracking = "rows"
    retention: timedelta = timedelta(hours=24)  # an event is kept this long, and until active and paused groups have it
    zero_retention: timedelta = timedelta(hours=24)  # or, when no group was ever to have it, this long
    max_retention: timedelta = timedelta(days=30)  # the cap: no group holds events for longer
    zombie_ttl: timedelta = timedelta(days=7)  # an active group that stands still for so long holds only `retention`
    block_writes: bool = False  # pub/sub: refuse events while no group is active
    partitions: Partitions = "none"  # old events go by partition, or by batches of rows
    shards: int = 16  # as many members of an ordered group can work at the same time
    heartbeat_interval: timedelta = timedelta(seconds=60)
    heartbeat_timeout: timedelta = timedelta(seconds=300)
    fetch_batch: int = 1000  # events per fetch
    cleanup_batch: int = 10_000

    def __post_init__(self) -> None:
        try:
            check_topic(self.name)
        except InvalidEvent as error:
            raise ConfigError(f"not a topic's name: {error}") from None
        for name, kind in _WORDS.items():
            value, words = getattr(self, name), get_args(kind)
            if value not in words:
                raise ConfigError(f"expected {name} to be {', '.join(words[:-1])} or {words[-1]}, got {value!r}")
        if self.tracking not in _TRACKINGS[self.semantics]:
            raise ConfigError(
                f"expected the tracking of a {self.semantics} topic to be one of "
                f"{', '.join(_TRACKINGS[self.semantics])}, got {self.tracking!r}"
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "timedelta" and not (isinstance(value, timedelta) and timedelta(0) < value <= _LONGEST):
                raise ConfigError(f"expected {field.name} to be a positive timedelta up to 100 years, got {value!r}")
            if field.type == "int" and not (type(value) is int and value > 0):
                raise ConfigError(f"expected {field.name} to be a positive int, got {value!r}")
        if type(self.block_writes) is not bool:
            raise ConfigError(f"expected block_writes to be True or False, got {self.block_writes!r}")
        if self.shards > 1024:
            raise ConfigError(f"expected shards to be at most 1024, got {self.shards}")
        for name in ("retention", "zero_retention"):
            if getattr(self, name) > self.max_retention:
                raise ConfigError(
                    f"expected {name} to be at most max_retention ({self.max_retention}), got {getattr(self, name)}; "
                    "raise max_retention too"
                )
        if self.heartbeat_timeout < 2 * self.heartbeat_interval:
            raise ConfigError(
                f"expected heartbeat_timeout to be at least twice heartbeat_interval ({self.heartbeat_interval}), "
                f"got {self.heartbeat_timeout}: a group must outlive a missed heartbeat"
            )

    @classmethod
    def queue(
        cls, name: str, *, tracking: Literal["rows", "offset"] = "rows", **options: Unpack[TopicOptions]
    ) -> Topic:
        """Each event goes to one consumer. `rows` keeps the state of each event; `offset` a position, and is faster."""
        return cls(name=name, semantics="queue", tracking=tracking, **options)

    @classmethod
    def pub_sub(
        cls,
        name: str,
        retention: timedelta = timedelta(hours=24),
        *,
        tracking: Literal["offset", "bitmap", "acks"] = "offset",
        **options: Unpack[_MoreOptions],
    ) -> Topic:
        """`bitmap` says of each event which groups have it, for at most 64 groups; `acks` for more."""
        return cls(name=name, semantics="pub_sub", tracking=tracking, retention=retention, **options)

    def with_options(self, **options: Unpack[TopicOptions]) -> Topic:
        """A copy with other options."""
        unknown = set(options) - set(TopicOptions.__annotations__)
        if unknown:
            raise ConfigError(
                f"unknown option {sorted(unknown)[0]!r}; expected {', '.join(TopicOptions.__annotations__)}"
            )
        return replace(self, **options)

    # -- presets: change what they name, keep the rest ------------------------------------------------

    def high_throughput(self) -> Topic:
        """More than 1,000 events/s."""
        return self.with_options(
            heartbeat_interval=timedelta(seconds=30),
            heartbeat_timeout=timedelta(minutes=2),
            fetch_batch=100,
            partitions="month",
            cleanup_batch=10_000,
        )

    def low_rate(self) -> Topic:
        """Less than 100 events/s."""
        return self.with_options(
            heartbeat_interval=timedelta(seconds=60),
            heartbeat_timeout=timedelta(minutes=5),
            fetch_batch=10,
            partitions="none",
        )

    def critical(self, keep: timedelta = timedelta(days=7)) -> Topic:
        """Nothing is written that nobody would receive, and all is kept for a week or more."""
        return self._keeping(keep, block_writes=True)

    def audit(self, keep: timedelta = timedelta(days=365)) -> Topic:
        """Nothing is written that nobody would receive, and all is kept for a year or more."""
        return self._keeping(keep, block_writes=True)

    def standard(self) -> Topic:
        """Kept for a day."""
        return self._keeping(timedelta(hours=24))

    def ephemeral(self) -> Topic:
        """Worth nothing after an hour: metrics, presence."""
        return self._keeping(timedelta(hours=1))

    def _keeping(self, keep: timedelta, *, block_writes: bool = False) -> Topic:
        """A queue has one consumer by nature and never blocks."""
        options: Any = {"retention": keep, "zero_retention": keep, "max_retention": max(keep, self.max_retention)}
        return self.with_options(**options, block_writes=block_writes and self.semantics == "pub_sub")
