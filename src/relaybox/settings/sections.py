"""Every setting, in sections: how much, how often, how long. Frozen, and checked when they are made.

`Settings()` reads nothing. `Settings.load()` asks the environment and a file, too; it is what `Outbox`, `Inbox` and all
others have that are given no settings, and what `relaybox config` shows.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import time, timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

from ..durations import DurationField, OptionalDurationField
from ..errors import ConfigError
from ..retry import Retry
from .load import SECRET, Leaf, Loaded, at, from_environment, from_file, leaves, load, replaced

OnExhausted = Literal["block", "park", "skip"]
UnknownTopics = Literal["refuse", "outbox"]
Fair = Literal["off", "tenant"]
WhenFull = Literal["refuse", "mark"]
OrderStrategy = Literal["shards", "advisory", "rows"]
ShardAssignment = Literal["leases", "rendezvous", "static"]
LEAST = timedelta(seconds=1)  # a healthy database needs less; a shorter lease or ttl does not make the limit shorter
BATCHES = 6  # times database_timeout
_RANGE = re.compile(r"\s*([0-9]+)(?:-([0-9]+))?\s*")


def _check_parts(whole: Any, above: str = "") -> None:
    """Dataclasses in a dataclass."""
    for entry in dataclasses.fields(whole):
        kind, value = type(entry.default), getattr(whole, entry.name)
        if dataclasses.is_dataclass(kind) and not isinstance(value, kind):
            raise ConfigError(f"expected {above}{entry.name} to be {kind.__name__}, got {value!r}")


class _Section:
    """Checks each field by its type: numbers and durations are positive unless the section says otherwise."""

    section: ClassVar[str]
    signed: ClassVar[tuple[str, ...]] = ()
    may_be_zero: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, section: str) -> None:
        cls.section = section

    def __post_init__(self) -> None:
        _check_parts(self, f"{self.section}.")
        for leaf in leaves(type(self)):
            value = at(self, leaf.path)
            if "." not in leaf.path and not (value is None and leaf.optional):
                self._check(leaf, value)
        self._check_together()

    def _check(self, leaf: Leaf, value: Any) -> None:
        kind, name, words = leaf.kind, f"{self.section}.{leaf.path}", get_args(leaf.kind)
        if isinstance(value, timedelta):
            least = timedelta(0) if leaf.path in self.may_be_zero else timedelta(microseconds=1)
            if value < least:
                raise ConfigError(f"expected {name} to be a positive duration, got {value}")
        elif get_origin(kind) is Literal:
            if value not in words:
                raise ConfigError(f"expected {name} to be {', '.join(words[:-1])} or {words[-1]}, got {value!r}")
        elif kind is int and leaf.path not in self.signed:
            if type(value) is not int or value < 1:
                raise ConfigError(f"expected {name} to be a positive int, got {value!r}")
        elif type(value) is not kind:
            got = f"one of type {type(value).__name__}" if leaf.secret else repr(value)
            raise ConfigError(f"expected {name} to be of type {kind.__name__}, got {got}")

    def _check_together(self) -> None:
        """What one field says about another."""


@dataclass(frozen=True, kw_only=True)
class DeliverySettings(_Section, section="delivery"):
    """How a process claims, delivers and settles. Outboxes, groups, inboxes and relays have them in common."""

    workers: Annotated[int, "events handled at the same time by this process"] = 4
    hot_queue: Annotated[int, "committed events waiting here for a worker; more go to the poller"] = 1000
    cold_queue: Annotated[int, "claimed events in this process, from claim to settle"] = 1000
    retry: Annotated[Retry, "how often an event is tried, and when again"] = Retry()
    timeout: Annotated[OptionalDurationField, "longest run of one listener; none: no limit"] = OptionalDurationField(
        "60s"
    )
    stop_timeout: Annotated[DurationField, "how long a stop waits for running listeners"] = DurationField("5s")
    batch: Annotated[int, "events per claim to begin with; grows while listeners keep up"] = 50
    fair: Annotated[
        Fair,
        "claims go round the tenants, so that none waits for another; `relaybox migrate` makes the index it needs. Not "
        "with ordered delivery; no matter to logs",
    ] = "off"
    payload_bytes: Annotated[
        int,
        "claimed payloads in this process, about; what has no room waits in the database, but for one event at a time. "
        "Groups of a topic keep as much again of what they share",
    ] = 64 * 2**20
    poll: Annotated[
        OptionalDurationField,
        "pause between two looks at an idle table; none: 5s where wake-ups work, 500ms where they cannot",
    ] = OptionalDurationField(None)
    lease: Annotated[DurationField, "how long a claim holds unless renewed"] = DurationField("30s")
    instance_ttl: Annotated[DurationField, "silence after which a process counts as dead"] = DurationField("5s")
    database_timeout: Annotated[
        DurationField,
        "longest answer to a statement of ours in the background; the connection is then given up for a new one",
    ] = DurationField("10s")
    owner: Annotated[str | None, "name of this process in locked_by; none: host, pid and a random part"] = None
    notify: Annotated[bool, "wake other processes with NOTIFY after commits (PostgreSQL)"] = True
    freeze_gc: Annotated[
        bool,
        "when delivery starts, keep the garbage collector from looking through what is there: for processes that do "
        "little else; relaybox relay and relaybox ingest do it unless this is off",
    ] = False

    def _check_together(self) -> None:
        if self.lease < 2 * self.instance_ttl:
            raise ConfigError(
                f"expected delivery.lease to be at least twice delivery.instance_ttl ({self.instance_ttl}), got "
                f"{self.lease}: a claim must outlive two missed heartbeats"
            )
        if self.owner is not None and not 0 < len(self.owner) <= 128:
            raise ConfigError("expected delivery.owner to be a name of 1 to 128 characters")

    @property
    def statement_seconds(self) -> float:
        """For a claim, a renewal, a settle: three of them fit into a lease."""
        return min(self.database_timeout, max(self.lease / 3, LEAST)).total_seconds()

    @property
    def heartbeat_seconds(self) -> float:
        """For a sign of life: when one is not answered, another comes in time."""
        return min(self.database_timeout, max(self.instance_ttl / 2, LEAST)).total_seconds()

    @property
    def batch_seconds(self) -> float:
        """For batches that touch many rows: purge and upkeep."""
        return BATCHES * self.database_timeout.total_seconds()


@dataclass(frozen=True, kw_only=True)
class OrderSettings(_Section, section="order"):
    """Ordered delivery from an outbox."""

    signed: ClassVar[tuple[str, ...]] = ("lock_namespace",)
    strategy: Annotated[
        OrderStrategy, "a key is won by its shard, an advisory lock or a row lock; the same in every process"
    ] = "shards"
    shards: Annotated[int, "parts of the key space, at most 1024; the same in every process"] = 16
    shard_rows: Annotated[int, "most events per claim from shards"] = 500
    assignment: Annotated[
        ShardAssignment,
        "which shards a process wants: its fair share of any, those its name wins by rendezvous hashing, static_shards",
    ] = "leases"
    static_shards: Annotated[str | None, "numbers and ranges, 0-7,12; with assignment static"] = None
    key_candidates: Annotated[int, "keys looked at per claim with advisory or row locks"] = 200
    keys_per_claim: Annotated[int, "most keys per claim with advisory or row locks"] = 50
    lock_namespace: Annotated[int, "first number of our advisory locks; change it if your program uses the same"] = 1
    on_exhausted: Annotated[
        OnExhausted, "when attempts have run out: block keeps retrying, park holds the key, skip goes on"
    ] = "block"

    def _check_together(self) -> None:
        if self.shards > 1024:
            raise ConfigError(f"expected order.shards to be at most 1024, got {self.shards}")
        if self.keys_per_claim > self.key_candidates:
            raise ConfigError(
                f"expected order.keys_per_claim to be at most order.key_candidates {self.key_candidates}, got "
                f"{self.keys_per_claim}"
            )
        if not -(2**31) <= self.lock_namespace < 2**31:
            raise ConfigError(f"expected order.lock_namespace to be a 32-bit number, got {self.lock_namespace!r}")
        if (self.static_shards is not None) != (self.assignment == "static"):
            raise ConfigError(
                "expected order.static_shards together with order.assignment static, got "
                f"static_shards {self.static_shards!r} and assignment {self.assignment!r}"
            )
        if self.static_shards is not None:
            shard_numbers(self.static_shards, self.shards)


@dataclass(frozen=True, kw_only=True)
class OutboxSettings(_Section, section="outbox"):
    """What an outbox takes, and how long it keeps what it is done with."""

    write_function: Annotated[
        bool, "write by the function that `relaybox grants writer` makes, for a role that may not insert (PostgreSQL)"
    ] = False
    unknown_topics: Annotated[
        UnknownTopics,
        "an event of a topic that is not configured: refuse it, or put it into the outbox, where relays route by it "
        "(PostgreSQL; where there are no topics, always into the outbox)",
    ] = "refuse"
    retention: Annotated[OptionalDurationField, "delete finished events older than this; none: never"] = (
        OptionalDurationField(None)
    )
    dead_retention: Annotated[OptionalDurationField, "delete dead letters this long after death; none: never"] = (
        OptionalDurationField(None)
    )
    purge_batch: Annotated[int, "events deleted per transaction"] = 500
    purge_interval: Annotated[DurationField, "pause between two purges"] = DurationField("1h")


@dataclass(frozen=True, kw_only=True)
class TenantSettings(_Section, section="tenants"):
    """How much may wait for one tenant, in an outbox and in each queue tracked by rows, as writers see it."""

    max_waiting: Annotated[int | None, "events of one tenant; needs the index of fair claims; none: any number"] = None
    over: Annotated[
        WhenFull, "of an event beyond it: refuse the write with TenantFull, or mark the event with a header"
    ] = "refuse"
    look_interval: Annotated[DurationField, "how long a writer trusts what it has counted"] = DurationField("1s")


@dataclass(frozen=True, kw_only=True)
class InboxSettings(_Section, section="inbox"):
    """Whether an inbox works, how long it keeps what it is done with, and when it raises an alert."""

    enabled: Annotated[bool, "process and ingest inboxes; off: both stand still, and what is accepted waits"] = True
    retention: Annotated[
        OptionalDurationField,
        "delete processed messages older than this, unless the inbox keeps its own; none: never",
    ] = OptionalDurationField("72h")
    dead_retention: Annotated[OptionalDurationField, "delete dead letters this long after death; none: never"] = (
        OptionalDurationField(None)
    )
    seen_retention: Annotated[
        OptionalDurationField, "forget ids this long after; longer than any sender may repeat; none: never"
    ] = OptionalDurationField("90d")
    purge_batch: Annotated[int, "messages deleted per transaction"] = 1000
    purge_interval: Annotated[DurationField, "pause between two purges"] = DurationField("1m")
    alerts_per_look: Annotated[int, "alerts of a kind per look; the rest is counted in one more"] = 10
    alert_interval: Annotated[DurationField, "pause between two looks for dead letters and gaps"] = DurationField("30s")
    gap_delay: Annotated[DurationField, "how long a number may be missing before it is an alert"] = DurationField("1m")


@dataclass(frozen=True, kw_only=True)
class TopicSettings(_Section, section="topics"):
    """The upkeep of topics by a maintainer: how often, and how much at once."""

    may_be_zero: ClassVar[tuple[str, ...]] = ("cleanup_pause",)
    tick_interval: Annotated[DurationField, "pause between two ticks"] = DurationField("1s")
    thin_interval: Annotated[DurationField, "pause between two deletions of ticks nobody needs"] = DurationField("1m")
    partition_interval: Annotated[DurationField, "pause between two looks for partitions to make or drop"] = (
        DurationField("5m")
    )
    cleanup_interval: Annotated[DurationField, "pause between two cleanups"] = DurationField("5m")
    cleanup_batch: Annotated[int, "events deleted per transaction; a topic may ask for less"] = 10_000
    cleanup_pause: Annotated[DurationField, "pause between two batches of a cleanup"] = DurationField(0)
    cleanup_budget: Annotated[DurationField, "longest run of one cleanup, all topics together"] = DurationField("30s")
    detect_interval: Annotated[
        DurationField, "pause between two looks for dead groups; a fifth of the shortest heartbeat timeout, or less"
    ] = DurationField("1m")
    watch_interval: Annotated[DurationField, "pause between two looks for what is worth an alert"] = DurationField("1m")
    groups_at: Annotated[time, "UTC; when old groups are forgotten"] = time(2, 0)
    group_retention: Annotated[DurationField, "forget dead and cancelled groups after this time"] = DurationField("30d")
    dead_retention: Annotated[OptionalDurationField, "delete dead letters of groups this old; none: never"] = (
        OptionalDurationField(None)
    )
    reap_members: Annotated[bool, "forget consumers that are silent for reap_after"] = True
    reap_after: Annotated[DurationField, "silence after which a consumer is forgotten"] = DurationField("24h")
    unhealthy_after: Annotated[DurationField, "silence of a member that is worth an alert"] = DurationField("60s")
    lock_timeout: Annotated[DurationField, "what an insert may wait for a change of partitions"] = DurationField(
        "500ms"
    )
    term_ttl: Annotated[DurationField, "silence after which another maintainer takes over"] = DurationField("15s")
    stop_timeout: Annotated[DurationField, "how long a stop waits for running jobs"] = DurationField("30s")

    @classmethod
    def for_low_throughput(cls) -> Self:
        """For less than some 100 events a second: it cleans up seldom."""
        return cls(cleanup_interval="15m", cleanup_batch=5_000, detect_interval="5m")

    @classmethod
    def for_high_throughput(cls) -> Self:
        """For more than some 10,000 events a second: it cleans up often, in large batches."""
        return cls(cleanup_interval="1m", cleanup_batch=50_000, detect_interval="1m", group_retention="7d")

    @classmethod
    def for_critical_system(cls) -> Self:
        """Dead groups are noticed sooner, and kept for 90 days."""
        return cls(detect_interval="2m", group_retention="90d")

    @classmethod
    def for_rate(cls, events_per_second: float) -> Self:
        """Interval and batch of the cleanup by how much is written."""
        table = ((100, 15, 5_000), (1_000, 5, 10_000), (10_000, 2, 20_000), (float("inf"), 1, 50_000))
        minutes, batch = next((m, b) for below, m, b in table if events_per_second < below or below == float("inf"))
        return cls(cleanup_interval=timedelta(minutes=minutes), cleanup_batch=batch)

    @classmethod
    def incremental(cls) -> Self:
        """A little all the time: for a database that should not feel it."""
        return cls(cleanup_interval="10s", cleanup_batch=1_000, cleanup_pause="100ms", cleanup_budget="10s")


@dataclass(frozen=True, kw_only=True)
class FeedSettings(_Section, section="feeds"):
    """Feeds that a maintainer refreshes, and what is told of all feeds."""

    interval: Annotated[DurationField, "pause between two looks for feeds that are due"] = DurationField("1s")
    at_once: Annotated[int, "feeds refreshed at the same time by a maintainer"] = 4
    slow: Annotated[
        DurationField, "a feed whose last refresh took longer shares half of feeds.at_once with all of which that is so"
    ] = DurationField("10s")
    back_off: Annotated[DurationField, "pause after a refresh that failed; doubles with each that fails again"] = (
        DurationField("10s")
    )
    longest_back_off: Annotated[DurationField, "longest such pause"] = DurationField("1h")
    late: Annotated[DurationField, "how long after its time a feed may be refreshed before that is worth an alert"] = (
        DurationField("5m")
    )
    critical_mb: Annotated[
        int, "MiB kept for readers of a feed, in chunks and in the log of its topic, that are worth an alert"
    ] = 1024
    verify_interval: Annotated[
        OptionalDurationField, "pause between two comparisons of a feed with its query, which is evaluated; none: never"
    ] = OptionalDurationField("24h")

    def _check_together(self) -> None:
        if self.longest_back_off < self.back_off:
            raise ConfigError(f"expected feeds.longest_back_off to be at least feeds.back_off {self.back_off}")


@dataclass(frozen=True, kw_only=True)
class RelaySettings(_Section, section="relay"):
    """What a relay has of its own: it gives up later than a listener, holds more at a time, and keeps a month of
    history. For the rest it is a process that delivers."""

    batch: Annotated[int, "most messages in one call; a sink may take fewer"] = 500
    timeout: Annotated[DurationField, "how long a broker's answer may take before it counts as away"] = DurationField(
        "10s"
    )
    retry: Annotated[Retry, "instead of delivery.retry"] = Retry(attempts=25)
    in_flight: Annotated[int, "instead of delivery.cold_queue: brokers take batches"] = 5000
    calls: Annotated[
        int, "calls under way at the same time, where each destination has its own (webhooks); not delivery.workers"
    ] = 256
    slow: Annotated[
        DurationField, "a destination that takes longer for an answer shares half of relay.calls with all that do"
    ] = DurationField("1s")
    shard_rows: Annotated[int, "instead of order.shard_rows"] = 800
    retention: Annotated[OptionalDurationField, "instead of outbox.retention"] = OptionalDurationField("30d")


@dataclass(frozen=True, kw_only=True)
class IngestSettings(_Section, section="ingest"):
    """From a broker into an inbox."""

    batch: Annotated[int, "most messages in one transaction"] = 500
    wait: Annotated[DurationField, "how long a broker is given to have something new"] = DurationField("1s")


@dataclass(frozen=True, kw_only=True)
class ReplicaSettings(_Section, section="replica"):
    """A table that follows a feed of another database."""

    poll: Annotated[DurationField, "pause between two looks at the source, while there is nothing new"] = DurationField(
        "1s"
    )


@dataclass(frozen=True, kw_only=True)
class GuardSettings(_Section, section="guard"):
    """How long a guard knows what was handled, and what a crash in between costs."""

    ttl: Annotated[DurationField, "how long a handled message is known"] = DurationField("720h")
    lease: Annotated[DurationField, "how long a message counts as being handled unless renewed"] = DurationField("30s")


@dataclass(frozen=True, kw_only=True)
class AdminSettings(_Section, section="admin"):
    """What is written down when an operator changes something."""

    actor: Annotated[str | None, "who changes something, where the caller does not say; none: user@host"] = None
    require_reason: Annotated[bool, "refuse a change without a reason"] = False
    audit_retention: Annotated[
        OptionalDurationField, "delete audit rows older than this, with each purge; none: never"
    ] = OptionalDurationField(None)
    shown_headers: Annotated[
        str | None,
        "headers that may be shown, with commas between: `events show` prints them without --payload, and an inbox "
        "with a vault stores them in clear text; none: no header",
    ] = None

    def _check_together(self) -> None:
        if self.actor is not None and not 0 < len(self.actor) <= 255:
            raise ConfigError("expected admin.actor to be a name of 1 to 255 characters")

    def shown(self) -> frozenset[str]:
        """The headers that may be shown, in lower case."""
        return frozenset(name.strip().lower() for name in (self.shown_headers or "").split(",")) - {""}


@dataclass(frozen=True, kw_only=True)
class ListenSettings(_Section, section="listen"):
    """Who may read the pages of health and metrics in full."""

    token: Annotated[
        str | None, "reasons and metrics are for those who send it as their bearer token; none: for everybody"
    ] = dataclasses.field(default=None, repr=False, metadata=SECRET)
    token_file: Annotated[str | None, "the file that the token is in, instead; read when the pages are opened"] = None

    def _check_together(self) -> None:
        if self.token is not None and self.token_file is not None:
            raise ConfigError("expected listen.token or listen.token_file, got both")

    def bearer(self) -> str | None:
        """The token, from wherever it is."""
        if self.token_file is None:
            return self.token
        try:
            found = Path(self.token_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"cannot read listen.token_file {self.token_file}: {error.strerror}") from None
        except UnicodeError:
            raise ConfigError(f"listen.token_file {self.token_file} is not text") from None
        if not found:
            raise ConfigError(f"listen.token_file {self.token_file} is empty")
        return found


# What the settings of a framework say, by path, and how that place is called: the least of all layers but the default.
programs: dict[str, Callable[[], Mapping[str, Any]]] = {}

# Names that are no settings: of the command line and the test kit, of sinks and sources, of one relay or ingest.
VARIABLES = frozenset(
    {"URL", "TABLE", "SCHEMA", "INBOX", "CONFIG", "ACTOR", "LOG_LEVEL", "LOG_FORMAT", "SINK", "SOURCE", "CRASH"}
    | {"KAFKA_JARS", "KEYRING", "MASTER_KEYS", "KEYS_TABLE", "PROGRAMS", "CACHE"}
)
PREFIXES = ("SINK_", "SOURCE_")
TABLES = frozenset({"url", "table", "schema", "sink", "source"})
RELAY = (
    *("to", "format", "ce_source", "ordered", "fair", "contracts", "decrypt", "rows", "tombstones", "listen"),
    "idempotency_ttl",
)
REPLICA = ("into",)
INGEST = ("inbox", "sender", "subject", "listen", "type", "type_header", "id_header", "key_header", "content_type")
_PROCESSES = frozenset(
    {
        *(f"relay.{name}" for name in RELAY),
        *(f"ingest.{name}" for name in INGEST),
        *(f"replica.{name}" for name in REPLICA),
    }
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much, how often and how long, in sections: `Settings(delivery=DeliverySettings(workers=8))`.

    It reads nothing; `Settings.load()` reads the environment and a file."""

    delivery: DeliverySettings = DeliverySettings()
    order: OrderSettings = OrderSettings()
    outbox: OutboxSettings = OutboxSettings()
    tenants: TenantSettings = TenantSettings()
    inbox: InboxSettings = InboxSettings()
    topics: TopicSettings = TopicSettings()
    feeds: FeedSettings = FeedSettings()
    relay: RelaySettings = RelaySettings()
    ingest: IngestSettings = IngestSettings()
    replica: ReplicaSettings = ReplicaSettings()
    guard: GuardSettings = GuardSettings()
    admin: AdminSettings = AdminSettings()
    listen: ListenSettings = ListenSettings()

    def __post_init__(self) -> None:
        _check_parts(self)

    @classmethod
    def load(
        cls,
        file: str | Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        given: Mapping[str, Any] | None = None,
        base: Settings | None = None,
    ) -> Settings:
        """What is `given` by path, the environment, the file (or the one that RELAYBOX_CONFIG names), the default: the
        first that says something wins. `base` has other defaults. Unknown names and wrong values raise ConfigError."""
        return explained(file, environment=environment, given=given, base=base).settings

    def replaced(self, values: Mapping[str, Any]) -> Settings:
        """A copy with other values, by path: `settings.replaced({"delivery.workers": 1})`."""
        return replaced(self, values)

    def of_relay(self) -> Settings:
        """As a relay delivers: the section `relay` instead of what it names."""
        return self.replaced(
            {
                "delivery.retry": self.relay.retry,
                "delivery.cold_queue": self.relay.in_flight,
                "order.shard_rows": self.relay.shard_rows,
                "outbox.retention": self.relay.retention,
            }
        )

    @property
    def term_seconds(self) -> float:
        """For a maintainer that keeps the lead: three tries fit into a term."""
        return min(self.delivery.database_timeout, max(self.topics.term_ttl / 3, LEAST)).total_seconds()


def chosen(given: Settings | None, otherwise: Callable[[], Settings]) -> Settings:
    """What a caller gives, if it is settings; a dict is a mistake that would show much later."""
    if given is None:
        return otherwise()
    if not isinstance(given, Settings):
        raise ConfigError(
            "expected settings to be Settings, such as Settings(delivery=DeliverySettings(workers=8)), "
            f"got {type(given).__name__}"
        )
    return given


def explained(
    file: str | Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    given: Mapping[str, Any] | None = None,
    base: Settings | None = None,
) -> Loaded[Settings]:
    """As `Settings.load`, with the origin of each value."""
    environment = os.environ if environment is None else environment
    layers: dict[str, Mapping[str, Any]] = {name: said() for name, said in programs.items()}
    if file or (file := environment.get("RELAYBOX_CONFIG")):
        layers[f"file {Path(file).name}"] = from_file(Settings, Path(file), TABLES | _PROCESSES)
    variables = VARIABLES | {path.replace(".", "_").upper() for path in _PROCESSES}
    layers["environment"] = from_environment(Settings, environment, variables, PREFIXES)
    layers["argument"] = given or {}
    return load(base or Settings(), layers)


def shard_numbers(text: str, shards: int) -> frozenset[int]:
    """`0-7,12` as numbers."""
    numbers: set[int] = set()
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        chosen = range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)
        if not chosen or chosen[-1] >= shards:
            raise ConfigError(
                f"expected order.static_shards to be numbers and ranges below {shards}, such as 0-7,12, got {text!r}"
            )
        numbers.update(chosen)
    return frozenset(numbers)
