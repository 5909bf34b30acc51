"""How often and how much: every knob of the maintenance, with presets by load."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import time, timedelta
from typing import Self

from ..errors import ConfigError
from ..settings import BATCHES, DATABASE_TIMEOUT, LEAST


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    tick_interval: timedelta = timedelta(seconds=1)
    thin_interval: timedelta = timedelta(minutes=1)
    partition_interval: timedelta = timedelta(minutes=5)
    cleanup_interval: timedelta = timedelta(minutes=5)
    cleanup_batch: int = 10_000  # events per transaction; a topic may ask for less
    cleanup_pause: timedelta = timedelta(0)  # between two batches
    cleanup_budget: timedelta = timedelta(seconds=30)  # per run, all topics together
    detect_interval: timedelta = timedelta(minutes=1)  # a fifth of the shortest heartbeat timeout, or less
    watch_interval: timedelta = timedelta(minutes=1)
    groups_at: time = time(2, 0)  # UTC; when old groups are forgotten
    group_retention: timedelta = timedelta(days=30)  # dead and cancelled groups are kept so long
    dead_retention: timedelta | None = None  # dead letters of groups; none: for ever
    reap_members: bool = True
    reap_after: timedelta = timedelta(hours=24)  # silence after which a consumer is forgotten
    unhealthy_after: timedelta = timedelta(seconds=60)
    lock_timeout: timedelta = timedelta(milliseconds=500)  # what an insert may wait for a change of partitions
    term_ttl: timedelta = timedelta(seconds=15)  # silence after which another maintainer takes over
    stop_wait: timedelta = timedelta(seconds=30)
    database_timeout: timedelta = DATABASE_TIMEOUT  # as in Settings; a batch gets six times as long

    def __post_init__(self) -> None:
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            least = timedelta(0) if entry.name == "cleanup_pause" else timedelta(microseconds=1)
            if isinstance(value, timedelta) and value < least:
                raise ConfigError(f"expected {entry.name} to be a positive duration, got {value}")
        if self.cleanup_batch < 1:
            raise ConfigError(f"expected cleanup_batch to be a positive number, got {self.cleanup_batch}")

    @property
    def term_seconds(self) -> float:
        """For keeping the lead: three tries fit into a term."""
        return min(self.database_timeout, max(self.term_ttl / 3, LEAST)).total_seconds()

    @property
    def batch_seconds(self) -> float:
        return BATCHES * self.database_timeout.total_seconds()

    @classmethod
    def for_low_throughput(cls) -> Self:
        return cls(
            cleanup_interval=timedelta(minutes=15),
            cleanup_batch=5_000,
            detect_interval=timedelta(minutes=5),
        )

    @classmethod
    def for_high_throughput(cls) -> Self:
        return cls(
            cleanup_interval=timedelta(minutes=1),
            cleanup_batch=50_000,
            detect_interval=timedelta(minutes=1),
            group_retention=timedelta(days=7),
        )

    @classmethod
    def for_critical_system(cls) -> Self:
        return cls(
            detect_interval=timedelta(minutes=2),
            group_retention=timedelta(days=90),
        )

    @classmethod
    def for_rate(cls, events_per_second: float) -> Self:
        """Interval and batch of the cleanup by how much is written."""
        table = ((100, 15, 5_000), (1_000, 5, 10_000), (10_000, 2, 20_000), (float("inf"), 1, 50_000))
        minutes, batch = next((m, b) for below, m, b in table if events_per_second < below or below == float("inf"))
        return cls(cleanup_interval=timedelta(minutes=minutes), cleanup_batch=batch)

    @classmethod
    def incremental(cls) -> Self:
        """A little all the time: for a database that should not feel it."""
        return cls(
            cleanup_interval=timedelta(seconds=10),
            cleanup_batch=1_000,
            cleanup_pause=timedelta(milliseconds=100),
            cleanup_budget=timedelta(seconds=10),
        )
