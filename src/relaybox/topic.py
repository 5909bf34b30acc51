"""What a topic is: semantics, how completion is tracked, and how long things are kept. Pure.

    Topic.queue("jobs")                                  each event to one consumer, state per row
    Topic.queue("clicks", tracking="offset")             the same on a log: faster, nothing written per event
    Topic.pub_sub("orders", retention="7d")              each event to every group
    Topic.pub_sub("clicks", spread=8)                    a hot one, its shards in eight tables
    Topic.pub_sub("payments").critical()                 and never one that nobody is there to receive

Every topic has tables of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Final, Literal, TypedDict, Unpack, get_args

from .durations import Duration, DurationField, parse_duration
from .errors import ConfigError, InvalidEvent
from .event import check_topic

Semantics = Literal["queue", "pub_sub"]
Tracking = Literal["rows", "offset", "bitmap", "acks"]
Partitions = Literal["none", "day", "month"]

MAX_BITMAP_GROUPS: Final = 64
_LONGEST = timedelta(days=36_500)
_WORDS = {"semantics": Semantics, "tracking": Tracking, "partitions": Partitions}
TRACKINGS: Final[dict[Semantics, tuple[Tracking, ...]]] = {
    "queue": ("rows", "offset"),
    "pub_sub": ("offset", "bitmap", "acks"),
}


class TopicOptions(TypedDict, total=False):
    """What may be said of a topic besides its name, semantics and tracking; see `Topic`."""

    retention: Duration
    zero_retention: Duration
    max_retention: Duration
    zombie_ttl: Duration
    block_writes: bool
    partitions: Partitions
    shards: int
    spread: int
    heartbeat_interval: Duration
    heartbeat_timeout: Duration
    fetch_batch: int
    cleanup_batch: int


@dataclass(frozen=True, kw_only=True)
class Topic:
    """What a topic is: who gets its events, how it is remembered who has them, and how long they are kept.

    semantics           "queue": each event to one consumer; "pub_sub": each event to every group
    tracking            how it is known which events are done; see the guide "Choosing a tracking"
    retention           an event is kept this long, and until active and paused groups have it
    zero_retention      or, when no group was ever to have it, this long
    max_retention       the cap: no group holds events for longer
    zombie_ttl          an active group that stands still for so long holds only `retention`
    block_writes        pub/sub: refuse events while no group is active
    partitions          old events go by partition, or by batches of rows
    shards              as many members of an ordered group can work at the same time
    spread              tables that the shards of a hot log are spread over: more than one when writers wait for each
                        other; it is one topic all the same
    heartbeat_interval  pause between two looks at the members of a group
    heartbeat_timeout   silence after which a group with members that deliver counts as dead
    fetch_batch         events per fetch
    cleanup_batch       events deleted per transaction
    """

    name: str
    semantics: Semantics = "queue"
    tracking: Tracking = "rows"
    retention: DurationField = DurationField("24h")
    zero_retention: DurationField = DurationField("24h")
    max_retention: DurationField = DurationField("30d")
    zombie_ttl: DurationField = DurationField("7d")
    block_writes: bool = False
    partitions: Partitions = "none"
    shards: int = 16
    spread: int = 1
    heartbeat_interval: DurationField = DurationField("60s")
    heartbeat_timeout: DurationField = DurationField("5m")
    fetch_batch: int = 1000
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
        if self.tracking not in TRACKINGS[self.semantics]:
            raise ConfigError(
                f"expected the tracking of a {self.semantics} topic to be one of "
                f"{', '.join(TRACKINGS[self.semantics])}, got {self.tracking!r}"
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "DurationField" and not timedelta(0) < value <= _LONGEST:
                raise ConfigError(f"expected {field.name} to be a positive duration up to 100 years, got {value!r}")
            if field.type == "int" and not (type(value) is int and value > 0):
                raise ConfigError(f"expected {field.name} to be a positive int, got {value!r}")
        if type(self.block_writes) is not bool:
            raise ConfigError(f"expected block_writes to be True or False, got {self.block_writes!r}")
        if self.shards > 1024:
            raise ConfigError(f"expected shards to be at most 1024, got {self.shards}")
        if self.spread > self.shards:
            raise ConfigError(
                f"expected spread to be at most shards ({self.shards}), got {self.spread}: a shard is "
                "in one table. Raise shards too"
            )
        if self.spread > 1 and self.tracking == "rows":
            raise ConfigError(
                f"expected spread to be 1 for a queue tracked by rows, got {self.spread}: only a log has shards to "
                "spread; use tracking='offset'"
            )
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
        """Each event to one consumer. `rows` keeps the state of each event; `offset` is faster, and writes nothing per
        event that is done."""
        return cls(name=name, semantics="queue", tracking=tracking, **options)

    @classmethod
    def pub_sub(
        cls, name: str, *, tracking: Literal["offset", "bitmap", "acks"] = "offset", **options: Unpack[TopicOptions]
    ) -> Topic:
        """Each event to every group. `bitmap` says of each event which groups have it, for at most 64 groups; `acks`
        for more."""
        return cls(name=name, semantics="pub_sub", tracking=tracking, **options)

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
            heartbeat_interval="30s",
            heartbeat_timeout="2m",
            fetch_batch=100,
            partitions="month",
            cleanup_batch=10_000,
        )

    def low_rate(self) -> Topic:
        """Less than 100 events/s."""
        return self.with_options(
            heartbeat_interval="60s",
            heartbeat_timeout="5m",
            fetch_batch=10,
            partitions="none",
        )

    def critical(self, keep: Duration = "7d") -> Topic:
        """Nothing is written that no group would receive, and all is kept for a week or more."""
        return self._keeping(keep, block_writes=True)

    def audit(self, keep: Duration = "365d") -> Topic:
        """As critical, and all is kept for a year or more."""
        return self._keeping(keep, block_writes=True)

    def standard(self) -> Topic:
        """Kept for a day."""
        return self._keeping("24h")

    def ephemeral(self) -> Topic:
        """Worth nothing after an hour: metrics, presence."""
        return self._keeping("1h")

    def _keeping(self, keep: Duration, *, block_writes: bool = False) -> Topic:
        """A queue has one consumer by nature and never blocks."""
        kept = parse_duration(keep, "keep")
        return self.with_options(
            retention=kept,
            zero_retention=kept,
            max_retention=max(kept, self.max_retention),
            block_writes=block_writes and self.semantics == "pub_sub",
        )
