"""Every knob of an outbox node, frozen and validated together.

Precedence: explicit argument > environment (RELAYBOX_WORKER_COUNT …) > file > default. Nothing is read at
import; `load()` says where each value came from.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from .durations import parse_duration
from .errors import ConfigError

OnExhausted = Literal["block", "park", "skip"]
OrderStrategy = Literal["shards", "advisory", "rows"]
ShardAssignment = Literal["leases", "rendezvous", "static"]
_ENVIRONMENT = "RELAYBOX_"
LEAST = timedelta(seconds=1)  # a healthy database needs less; a shorter lease or ttl does not make the limit shorter
DATABASE_TIMEOUT = timedelta(seconds=10)
BATCHES = 6  # times database_timeout
_SERVICE = re.compile(r"SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)?")
_RANGE = re.compile(r"\s*([0-9]+)(?:-([0-9]+))?\s*")


def _knob(default: Any, about: str) -> Any:
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    worker_count: int = _knob(4, "events handled at the same time by this process")
    hot_queue_capacity: int = _knob(1000, "committed events waiting here for a worker; more go to the poller")
    cold_queue_capacity: int = _knob(1000, "claimed events in this process, from claim to settle")
    max_attempts: int = _knob(10, "deliveries of one event before it becomes a dead letter")
    retry_base: timedelta = _knob(timedelta(milliseconds=200), "pause after the first failure; doubles from there")
    retry_max: timedelta = _knob(timedelta(seconds=60), "longest pause between two attempts")
    handler_timeout: timedelta | None = _knob(timedelta(seconds=60), "longest run of one listener; none: no limit")
    drain_timeout: timedelta = _knob(timedelta(seconds=5), "how long close() waits for running listeners")
    batch_size: int = _knob(50, "events per claim to begin with; grows while listeners keep up")
    poll_interval: timedelta | None = _knob(
        None,
        "pause between two looks at an idle table; none: 5s where wake-ups work, 500ms where they cannot",
    )
    lease: timedelta = _knob(timedelta(seconds=30), "how long a claim holds unless renewed")
    instance_ttl: timedelta = _knob(timedelta(seconds=5), "silence after which a process counts as dead")
    database_timeout: timedelta = _knob(
        DATABASE_TIMEOUT,
        "longest answer to a statement of ours in the background; the connection is then given up for a new one",
    )
    owner: str | None = _knob(None, "name of this process in locked_by; none: host, pid and a random part")
    notify: bool = _knob(True, "wake other processes with NOTIFY after commits (PostgreSQL)")
    order_strategy: OrderStrategy = _knob(
        "shards",
        "ordered delivery: a key is won by its shard, an advisory lock or a row lock; the same in every process",
    )
    shards: int = _knob(16, "parts of the key space in ordered delivery; the same in every process")
    shard_rows: int = _knob(500, "most events per claim from shards")
    shard_assignment: ShardAssignment = _knob(
        "leases",
        "which shards a process wants: its fair share of any, those its name wins by rendezvous hashing, static_shards",
    )
    static_shards: str | None = _knob(None, "numbers and ranges, 0-7,12; with shard_assignment static")
    key_candidates: int = _knob(200, "keys looked at per claim with advisory or row locks")
    keys_per_claim: int = _knob(50, "most keys per claim with advisory or row locks")
    lock_namespace: int = _knob(1, "first number of our advisory locks; change it if your program uses the same")
    on_exhausted: OnExhausted = _knob(
        "block",
        "ordered delivery, after max_attempts: block keeps retrying, park holds the key, skip goes on",
    )
    publish_batch: int = _knob(500, "most messages a relay sends in one call; a sink may take fewer")
    publish_timeout: timedelta = _knob(
        timedelta(seconds=10),
        "how long a relay waits for a broker's answer before it counts as away",
    )
    purge_retention: timedelta | None = _knob(None, "delete finished events older than this; none: never")
    purge_dead_retention: timedelta | None = _knob(None, "delete dead letters this long after death; none: never")
    purge_batch_size: int = _knob(500, "events deleted per transaction")
    purge_interval: timedelta = _knob(timedelta(hours=1), "pause between two purges")
    inbox_enabled: bool = _knob(True, "process and ingest inboxes; off: both stand still, and what is accepted waits")
    inbox_processed_retention: timedelta | None = _knob(
        timedelta(hours=72),
        "inbox: processors drain processed messages older than this, unless the inbox keeps its own; none: never",
    )
    inbox_dlq_retention: timedelta | None = _knob(None, "inbox: drain dead letters this long after death; none: never")
    inbox_seen_retention: timedelta | None = _knob(
        timedelta(days=90), "inbox: forget ids this long after; longer than any sender may repeat; none: never"
    )
    inbox_drain_batch_size: int = _knob(1000, "inbox: messages drained per transaction")
    inbox_drain_interval: timedelta = _knob(timedelta(minutes=1), "inbox: pause between two drains")
    inbox_dlq_alert_max_per_refresh: int = _knob(
        10, "inbox: alerts of a kind per look; the rest is counted in one more"
    )
    inbox_alert_interval: timedelta = _knob(
        timedelta(seconds=30), "inbox: pause between two looks for dead letters and gaps to tell of"
    )
    inbox_gap_alert_delay: timedelta = _knob(
        timedelta(minutes=1), "inbox: how long a number may be missing before it is an alert"
    )

    def __post_init__(self) -> None:
        for name in (
            "worker_count",
            "hot_queue_capacity",
            "cold_queue_capacity",
            "max_attempts",
            "batch_size",
            "shards",
            "shard_rows",
            "key_candidates",
            "keys_per_claim",
            "publish_batch",
            "purge_batch_size",
            "inbox_drain_batch_size",
            "inbox_dlq_alert_max_per_refresh",
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"expected {name} to be a positive int, got {value!r}")
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, timedelta) and value <= timedelta(0):
                raise ConfigError(f"expected {entry.name} to be a positive duration, got {value}")
        for name in _DURATIONS:
            value = getattr(self, name)
            if not isinstance(value, timedelta) and not (value is None and name in _OPTIONAL):
                raise ConfigError(f"expected {name} to be a timedelta, got {value!r}")
        if self.retry_max < self.retry_base:
            raise ConfigError(f"expected retry_max to be at least retry_base {self.retry_base}, got {self.retry_max}")
        if self.lease < 2 * self.instance_ttl:
            raise ConfigError(
                f"expected lease to be at least twice instance_ttl ({self.instance_ttl}), got {self.lease}: "
                "a claim must outlive two missed heartbeats"
            )
        for name, kind in (
            ("on_exhausted", OnExhausted),
            ("order_strategy", OrderStrategy),
            ("shard_assignment", ShardAssignment),
        ):
            value, words = getattr(self, name), get_args(kind)
            if value not in words:
                raise ConfigError(f"expected {name} to be {', '.join(words[:-1])} or {words[-1]}, got {value!r}")
        if self.owner is not None and not (isinstance(self.owner, str) and 0 < len(self.owner) <= 128):
            raise ConfigError("expected owner to be a name of 1 to 128 characters")
        if self.shards > 1024:
            raise ConfigError(f"expected shards to be at most 1024, got {self.shards}")
        if self.keys_per_claim > self.key_candidates:
            raise ConfigError(
                f"expected keys_per_claim to be at most key_candidates {self.key_candidates}, got {self.keys_per_claim}"
            )
        if type(self.lock_namespace) is not int or not -(2**31) <= self.lock_namespace < 2**31:
            raise ConfigError(f"expected lock_namespace to be a 32-bit number, got {self.lock_namespace!r}")
        if (self.static_shards is not None) != (self.shard_assignment == "static"):
            raise ConfigError(
                "expected static_shards together with shard_assignment static, got "
                f"static_shards {self.static_shards!r} and shard_assignment {self.shard_assignment!r}"
            )
        if self.static_shards is not None:
            shard_numbers(self.static_shards, self.shards)

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
        """For batches that touch many rows: purge, drain, upkeep."""
        return BATCHES * self.database_timeout.total_seconds()


def shard_numbers(text: str, shards: int) -> frozenset[int]:
    """`0-7,12` as numbers."""
    numbers: set[int] = set()
    for part in text.split(",") if isinstance(text, str) else [""]:
        found = _RANGE.fullmatch(part)
        chosen = range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)
        if not chosen or chosen[-1] >= shards:
            raise ConfigError(
                f"expected static_shards to be numbers and ranges below {shards}, such as 0-7,12, got {text!r}"
            )
        numbers.update(chosen)
    return frozenset(numbers)


_FIELDS = {entry.name: entry for entry in dataclasses.fields(Settings)}
_DURATIONS = tuple(name for name, entry in _FIELDS.items() if "timedelta" in str(entry.type))
_OPTIONAL = {name for name, entry in _FIELDS.items() if "None" in str(entry.type)}


class Origin(NamedTuple):
    name: str
    value: Any
    origin: str
    about: str


class Loaded(NamedTuple):
    settings: Settings
    origins: list[Origin]


_in_force: Settings | None = None


def use(settings: Settings) -> None:
    """What an outbox of this process has that is given no settings: `relaybox run` says so before it makes one."""
    global _in_force
    _in_force = settings


def in_force() -> Settings:
    return _in_force or Settings()


def load(
    explicit: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    file: str | Path | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Loaded:
    """Merge the layers; `defaults` are those of a process that differ from the general ones. Unknown names and bad
    values are errors here, before anything starts."""
    layers: list[tuple[str, Mapping[str, Any]]] = [("default", defaults or {})]
    if file is not None:
        layers.append((f"file {Path(file).name}", _from_file(Path(file))))
    if environment is not None:
        layers.append(("environment", _from_environment(environment)))
    layers.append(("argument", dict(explicit or {})))
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source, layer in layers:
        for name, value in layer.items():
            if name not in _FIELDS:
                raise ConfigError(f"unknown setting {name!r} ({source}); the settings are {', '.join(_FIELDS)}")
            values[name] = _typed(name, value)
            sources[name] = f"environment {_ENVIRONMENT}{name.upper()}" if source == "environment" else source
    settings = Settings(**values)
    origins = [
        Origin(name, getattr(settings, name), sources.get(name, "default"), entry.metadata["about"])
        for name, entry in _FIELDS.items()
    ]
    return Loaded(settings, origins)


# Names under RELAYBOX_ that belong to the command line or the test kit, not to Settings.
NOT_SETTINGS = frozenset(
    {
        "URL",
        "TABLE",
        "SCHEMA",
        "INBOX",
        "CONFIG",
        "LOG_LEVEL",
        "CRASH",
        "RELAY",
        "SINK",
        "INGEST",
        "SOURCE",
        "KAFKA_JARS",
        "GUARD_TTL",
    }
)
_NOT_SETTINGS_EITHER = ("RELAY_", "SINK_", "INGEST_", "SOURCE_")  # relay.config and ingest.config read them


def of_a_service(name: str) -> bool:
    """Kubernetes sets such variables in every pod for a service that is named as we are."""
    return _SERVICE.fullmatch(name) is not None


def prefixed(environment: Mapping[str, str], kind: str) -> dict[str, Any]:
    """What a process of one kind is told: of RELAYBOX_SINK_URL and `SINK_` the name `url`."""
    start = _ENVIRONMENT + kind
    given = {n.removeprefix(start): value for n, value in environment.items() if n.startswith(start) and value}
    return {name.lower(): value for name, value in given.items() if not of_a_service(name)}


def table_of(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = content.get(name, {})
    if not isinstance(found, dict):
        raise ConfigError(f"expected [relaybox.{name}] to be a table, got {type(found).__name__}")
    return dict(found)


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    names = (name.removeprefix(_ENVIRONMENT) for name in environment if name.startswith(_ENVIRONMENT))
    ours = (
        n for n in names if n not in NOT_SETTINGS and not n.startswith(_NOT_SETTINGS_EITHER) and not of_a_service(n)
    )
    return {n.lower(): environment[_ENVIRONMENT + n] for n in ours}


def _from_file(path: Path) -> dict[str, Any]:
    return {name: value for name, value in read_file(path).items() if name.upper() not in NOT_SETTINGS}


def read_file(path: Path) -> dict[str, Any]:
    """Everything under [relaybox] (or the whole file), with what belongs to the command line."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {path.name}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"the settings file {path.name} is not TOML: {error}") from error
    section = content.get("relaybox", content)
    if not isinstance(section, dict):
        raise ConfigError(f"expected [relaybox] in {path.name} to be a table")
    return section


def _typed(name: str, value: Any) -> Any:
    kind = str(_FIELDS[name].type)
    if name in _OPTIONAL and (value is None or (isinstance(value, str) and value.lower() in ("none", ""))):
        return None
    if name in _DURATIONS:
        return parse_duration(value, name)
    if kind == "bool":
        return _boolean(name, value)
    if kind == "int" and isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            raise ConfigError(f"expected {name} to be a whole number, got {value!r}") from None
    return value


def _boolean(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    known = {
        "true": True,
        "1": True,
        "yes": True,
        "on": True,
        "false": False,
        "0": False,
        "no": False,
        "off": False,
    }
    try:
        return known[str(value).lower()]
    except KeyError:
        raise ConfigError(f"expected {name} to be true or false, got {value!r}") from None
