"""Every system of a run, in the order of the report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import install
from benchmarks.driven import DrivenSystem
from benchmarks.ordered import OrderedSystem, shards_shared
from benchmarks.relayed import BareProducers, RelayboxRelays, RelayedSystem
from benchmarks.spi import System
from benchmarks.systems import relaybox_system, relaybox_topic
from benchmarks.topics import FanOutSystem

ROOT = Path(__file__).parent.parent
LOGS = install.CACHE / "logs"
NOT_DELIVERED = ("drain_1", "drain_2", "latency_1", "latency_2", "wal")
ONLY_WRITES = dict.fromkeys(NOT_DELIVERED, "a write baseline: nothing is delivered")


def systems() -> list[System]:
    """relaybox first, then the baselines, then the peers."""
    here = "benchmarks.systems.baselines"
    return [
        DrivenSystem(
            relaybox_system.NAME,
            "Python",
            _own("benchmarks.systems.relaybox_system"),
            ROOT,
            LOGS,
            has_hand_written=True,
        ),
        DrivenSystem(
            relaybox_topic.NAME,
            "Python",
            _own("benchmarks.systems.relaybox_topic"),
            ROOT,
            LOGS,
            full_drain=200_000,
            cannot={"write_overhead": "see relaybox"},
        ),
        DrivenSystem(
            "bare",
            "Python",
            _own(here, "bare"),
            ROOT,
            LOGS,
            cannot={**ONLY_WRITES, "write_batch": "writes no event"},
        ),
        DrivenSystem(
            "bare+insert",
            "Python",
            _own(here, "insert"),
            ROOT,
            LOGS,
            cannot={**ONLY_WRITES, "write_batch": "see bare COPY binary"},
        ),
        DrivenSystem(
            "bare COPY binary",
            "Python",
            _own(here, "copy"),
            ROOT,
            LOGS,
            cannot={**ONLY_WRITES, "write_tx": "a batch baseline"},
        ),
        _python("pgqueuer", "pgqueuer_peer"),
        _python("faststream-outbox", "faststream_outbox_peer", full_drain=20_000),
        _python("procrastinate", "procrastinate_peer", full_drain=5_000),
        _python("pgmq", "pgmq_peer"),
        _python("django-outbox-pattern", "django_outbox_pattern_peer", full_drain=20_000),
        _node("graphile-worker", "graphile_worker.mjs"),
        _node("pg-boss", "pg_boss.mjs"),
        *_ordered(),
        *_relayed(),
        FanOutSystem(ROOT, LOGS),
    ]


def _ordered() -> list[System]:
    here = "benchmarks.systems.relaybox_ordered"
    return [
        OrderedSystem(relaybox_system.NAME, "Python", _own(here, "shards"), ROOT, LOGS, ready=shards_shared),
        OrderedSystem("relaybox advisory", "Python", _own(here, "advisory"), ROOT, LOGS),
        OrderedSystem("relaybox rows", "Python", _own(here, "rows"), ROOT, LOGS),
        OrderedSystem("per_key_worker", "Python", _own("benchmarks.systems.per_key_worker"), ROOT, LOGS),
    ]


def _relayed() -> list[System]:
    writer = _own("benchmarks.systems.relaybox_ordered", "shards")
    naive = _own("benchmarks.systems.naive_publisher")
    faststream = [str(install.PEERS_PYTHON), "-m", "benchmarks.peers.python.faststream_outbox_relay"]
    return [
        RelayboxRelays(relaybox_system.NAME, "Python", writer, ROOT, LOGS),
        BareProducers("kafka_bare", "Python", _own("benchmarks.systems.kafka_bare"), ROOT, LOGS),
        RelayedSystem("naive_publisher", "Python", naive, ROOT, LOGS, full_backlog=50_000),
        RelayedSystem(
            "faststream-outbox",
            "Python",
            lambda: faststream,
            ROOT,
            LOGS,
            install.python_peers,
            full_backlog=20_000,
        ),
    ]


def _own(module: str, *arguments: str) -> Callable[[], Sequence[str]]:
    return lambda: [sys.executable, "-m", module, *arguments]


def _python(name: str, module: str, full_drain: int = 50_000) -> DrivenSystem:
    command = [str(install.PEERS_PYTHON), "-m", f"benchmarks.peers.python.{module}"]
    return DrivenSystem(name, "Python", lambda: command, ROOT, LOGS, install.python_peers, full_drain=full_drain)


def _node(name: str, script: str) -> DrivenSystem:
    return DrivenSystem(name, "Node", lambda: ["node", script], install.NODE_HOME, LOGS, install.node_peers)
