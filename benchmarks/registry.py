"""Every system of a run, in the order of the report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import install
from benchmarks.acks import AckSystem
from benchmarks.driven import DrivenSystem
from benchmarks.inbox import InboxSystem
from benchmarks.inbox_queries import InboxQueries
from benchmarks.ordered import ONE_WORKER, OrderedSystem, shards_shared
from benchmarks.pull import PullSystem
from benchmarks.relayed import BareProducers, RelayboxRelays, RelayedSystem
from benchmarks.spi import System
from benchmarks.systems import relaybox_system, relaybox_topic
from benchmarks.topics import Case, FanOutSystem

ROOT = Path(__file__).parent.parent
LOGS = install.CACHE / "logs"
NOT_DELIVERED = ("drain_1", "drain_2", "latency_1", "latency_2", "wal")
PGQ = [str(install.PEERS_PYTHON), "-m", "benchmarks.peers.python.pgq_peer", str(install.PGQ_HOME)]
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
            full_drain=1_000_000,
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
        _pgq("pgq"),
        _pgq("bare pgq", "hand"),
        _node("graphile-worker", "graphile_worker.mjs"),
        _node("pg-boss", "pg_boss.mjs"),
        *_ordered(),
        *_relayed(),
        *_fanned_out(),
        AckSystem(),
        PullSystem(),
        *_inboxes(),
    ]


def _ordered() -> list[System]:
    here = "benchmarks.systems.relaybox_ordered"
    return [
        OrderedSystem(relaybox_system.NAME, "Python", _own(here, "shards"), ROOT, LOGS, ready=shards_shared),
        OrderedSystem(ONE_WORKER, "Python", _own(here, "shards", "1"), ROOT, LOGS, ready=shards_shared),
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


def _inboxes() -> list[System]:
    here = "benchmarks.systems.inbox_relaybox"
    accepts = ("inbox_accept", "inbox_accept_pooled", "inbox_accept_tx", "inbox_accept_crowd", "inbox_accept_100")
    ours = (*accepts, "inbox_overhead", "inbox_process")
    node, places = ["node", "pg_transactional_outbox_inbox.mjs"], (install.NODE_HOME, LOGS, install.node_peers)
    django = [str(install.PEERS_PYTHON), "-m", "benchmarks.peers.python.django_outbox_pattern_inbox_peer"]
    return [
        InboxSystem(relaybox_system.NAME, "Python", _own(here, "asyncpg"), ROOT, LOGS, workloads=ours),
        InboxSystem("relaybox psycopg", "Python", _own(here, "psycopg"), ROOT, LOGS, workloads=ours),
        InboxSystem("pg-transactional-outbox", "Node", lambda: [*node, "polling"], *places, full_drain=5_000),
        InboxSystem("pg-transactional-outbox WAL", "Node", lambda: [*node, "replication"], *places, logical=True),
        InboxSystem("django-outbox-pattern", "Python", lambda: django, ROOT, LOGS, install.python_peers),
        InboxQueries(),
    ]


def _own(module: str, *arguments: str) -> Callable[[], Sequence[str]]:
    return lambda: [sys.executable, "-m", module, *arguments]


def _python(name: str, module: str, full_drain: int = 50_000) -> DrivenSystem:
    command = [str(install.PEERS_PYTHON), "-m", f"benchmarks.peers.python.{module}"]
    return DrivenSystem(name, "Python", lambda: command, ROOT, LOGS, install.python_peers, full_drain=full_drain)


def _pgq(name: str, *how: str) -> DrivenSystem:
    cannot = {"drain_2": "a batch has one reader; cooperative consumers are another package"}
    return DrivenSystem(name, "Python", lambda: [*PGQ, *how], ROOT, LOGS, install.pgq, cannot=cannot)


def _fanned_out() -> list[System]:
    def ours(case: Case) -> list[str]:
        return [sys.executable, "-m", "benchmarks.systems.relaybox_fanout", str(case.groups), case.how, case.tracking]

    def pgq(case: Case) -> list[str]:
        return [*PGQ, str(case.groups)]

    few = ("fanout_1", "fanout_4", "fanout_16")
    return [
        FanOutSystem(relaybox_system.NAME, "Python", ours, ROOT, LOGS),
        FanOutSystem("bare pgq", "Python", pgq, ROOT, LOGS, install.pgq, few, share=8),
    ]


def _node(name: str, script: str) -> DrivenSystem:
    return DrivenSystem(name, "Node", lambda: ["node", script], install.NODE_HOME, LOGS, install.node_peers)
