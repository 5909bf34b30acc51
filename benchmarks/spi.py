"""What a measured system offers: its facts and one method per workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

UNITS: Mapping[str, str] = {
    "write_tx": "transactions/s",
    "write_overhead": "x the same INSERT by hand",
    "write_batch": "events/s",
    "drain_1": "events/s",
    "drain_2": "events/s",
    "latency_1": "ms p50",
    "latency_2": "ms p50",
    "wal": "bytes/event",
    "ordered_drain_1": "events/s",
    "ordered_drain_4": "events/s",
    "ordered_claim_p95": "ms p95",
    "relay_kafka_1": "events/s",
    "relay_kafka_2": "events/s",
    "relay_twice_10": "% twice",
    **{f"fanout_{groups}": "deliveries/s" for groups in (1, 4, 16, 64, 100)},
    **{f"fanout_apart_{groups}": "deliveries/s" for groups in (4, 16, 64, 100)},
    **{f"fanout_bitmap_{groups}": "acks/s" for groups in (16, 64)},
    **{f"acks_{groups}": "acks/s" for groups in (1, 4, 16, 64)},
    "acks_table_100": "acks/s",
    "poll_p95": "ms p95",
    "commit_10_p95": "ms p95",
    "lag_p95": "ms p95",
    "held_snapshot": "% of without",
    "inbox_accept": "messages/s",
    "inbox_overhead": "x by hand",
    "inbox_accept_tx": "messages/s",
    "inbox_accept_pooled": "messages/s",
    "inbox_accept_100": "messages/s",
    "inbox_accept_crowd": "messages/s",
    "inbox_process": "messages/s",
    "inbox_pending": "ms p95",
    "inbox_health": "ms p95",
    "inbox_next": "ms p50",
    "inbox_next_flat": "x with 100,000 processed",
    "inbox_gaps": "ms p50",
    "inbox_gaps_flat": "x with 100,000 processed",
}
WORKLOADS = tuple(UNITS)
LOWER_IS_BETTER = frozenset(name for name, unit in UNITS.items() if unit.startswith(("ms", "bytes", "x ", "% twice")))


class Unsupported(Exception):
    """The system cannot do this workload; the message says why."""


class PeerFailed(Exception):
    """The system was asked and failed; the message carries its own words."""


@dataclass(frozen=True)
class Sizes:
    """How much work one measurement does."""

    tx: int = 2_000
    tx_block: int = 200
    batches: int = 50
    batch_size: int = 1_000
    drain: int = 50_000
    rate: int = 200
    latency_seconds: float = 10.0
    wal: int = 20_000
    backlog: int = 100_000
    backlog_keys: int = 10_000
    claim_rows: int = 10_000
    claim_keys: int = 3_000
    fanout: int = 3_200_000  # deliveries
    acks: int = 400_000
    held_seconds: float = 180.0
    inbox_pending: int = 1_000_000
    inbox_processed: int = 1_000_000

    @classmethod
    def quick(cls) -> Sizes:
        """A tenth of the work: shows that everything runs, not what is fast."""
        return cls(
            tx=400,
            tx_block=50,
            batches=5,
            drain=5_000,
            latency_seconds=5.0,
            wal=2_000,
            backlog=10_000,
            backlog_keys=1_000,
            fanout=320_000,
            acks=40_000,
            held_seconds=6.0,
            inbox_pending=100_000,
            inbox_processed=200_000,
        )

    def limited(self, full_drain: int) -> Sizes:
        """The same sizes for a system whose full drain is `full_drain` messages."""
        values = asdict(self)
        values["drain"] = self.drain * full_drain // Sizes().drain
        values["wal"] = min(self.wal, values["drain"])
        return Sizes(**values)


@dataclass(frozen=True)
class Sample:
    """One measurement: the value in the workload's unit, and what else was seen."""

    value: float
    extra: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    version: str = ""


class Database(Protocol):
    """A fresh database and the few server commands a measurement needs."""

    @property
    def url(self) -> str: ...

    def checkpoint(self) -> None: ...

    def analyze(self) -> None: ...

    def wal_position(self) -> int: ...


class System(Protocol):
    """One measured system: a method `(database, sizes) -> Sample` for each of its workloads. Several systems may share
    a name, with different workloads. What it cannot do after all raises Unsupported."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def language(self) -> str: ...

    @property
    def workloads(self) -> Sequence[str]: ...

    def install(self) -> None:
        """Get what is needed to run; called once before the first measurement."""
