"""PrometheusObserver: names, values, bounded labels, and gauges that never lie."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from relaybox import Outbox
from relaybox.errors import ConnectionLost
from relaybox.facts import (
    Administered,
    Claimed,
    ClaimLost,
    CutOff,
    Delivered,
    Depths,
    Died,
    Fact,
    HotDropped,
    HotEnqueued,
    LoopFailed,
    Published,
    Purged,
    Released,
    Replayed,
    Retried,
    Stuck,
    TakenOver,
    TaskEnded,
    WakeUps,
    Written,
)
from relaybox.observe.prometheus import BacklogCollector, PrometheusObserver
from relaybox.testing import ManualClock
from relaybox.testing.plugin import outbox, relaybox_options, relaybox_url

__all__ = ["outbox", "relaybox_options", "relaybox_url"]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def died(event_type: str) -> Died:
    return Died("id", event_type, 1, "ValueError: secret")


@pytest.mark.parametrize(
    ("fact", "name", "value"),
    [
        (Written(2), "relaybox_events_written_total", 2),
        (HotEnqueued(2), "relaybox_queue_hot_added_total", 2),
        (HotDropped(3), "relaybox_queue_hot_dropped_total", 3),
        (Claimed(4, 0.002), "relaybox_queue_cold_added_total", 4),
        (Claimed(4, 0.002), "relaybox_claim_seconds_count", 1),
        (Claimed(4, 0.002), "relaybox_claim_seconds_sum", 0.002),
        (Delivered(5), "relaybox_delivery_done_total", 5),
        (ClaimLost(6), "relaybox_claim_lost_total", 6),
        (Released(7), "relaybox_claim_released_total", 7),
        (TakenOver(2, 8), "relaybox_claim_taken_over_total", 8),
        (TakenOver(2, 8), "relaybox_instances_taken_over_total", 2),
        (Purged(9), "relaybox_events_purged_total", 9),
        (Replayed(10), "relaybox_events_replayed_total", 10),
        (WakeUps("listen", ""), "relaybox_wakeups_listening", 1),
        (WakeUps("poll", "x"), "relaybox_wakeups_listening", 0),
        (Depths(1, 2, timedelta(seconds=3)), "relaybox_queue_hot_depth", 1),
        (Depths(1, 2, timedelta(seconds=3)), "relaybox_queue_cold_depth", 2),
        (Depths(1, 2, timedelta(seconds=3)), "relaybox_lag_oldest_ms", 3000),
        (Depths(1, 2, timedelta(0)), "relaybox_lag_oldest_ms", 0),
    ],
)
def test_names_and_values(registry: CollectorRegistry, fact: Fact, name: str, value: float) -> None:
    PrometheusObserver(registry=registry)(fact)
    assert registry.get_sample_value(name) == value


@pytest.mark.parametrize(
    ("fact", "name", "labels"),
    [
        (died("A"), "relaybox_delivery_dead_total", {"event_type": "A"}),
        (Retried("id", "A", 1, timedelta(0), "x"), "relaybox_delivery_failed_total", {"event_type": "A"}),
        (LoopFailed("claim", "x"), "relaybox_loop_failures_total", {"loop": "claim"}),
        (Administered("replay", "dead letters", 3, "ann", ""), "relaybox_admin_changes_total", {"verb": "replay"}),
    ],
)
def test_labels(registry: CollectorRegistry, fact: Fact, name: str, labels: dict[str, str]) -> None:
    observer = PrometheusObserver(registry=registry)
    observer(fact)
    observer(fact)
    assert registry.get_sample_value(name, labels) == 2


@pytest.mark.parametrize(
    ("fact", "name", "label", "count"),
    [
        (Stuck("id", "T", 11, timedelta(0), "E"), "relaybox_delivery_stuck_total", {"event_type": "T"}, 1),
        (CutOff(2, "delivery.stop_timeout"), "relaybox_delivery_cut_off_total", {"limit": "delivery.stop_timeout"}, 2),
        (TaskEnded("worker", "E"), "relaybox_tasks_ended_total", {"task": "worker"}, 1),
    ],
)
def test_counts_by_label(
    registry: CollectorRegistry, fact: Fact, name: str, label: dict[str, str], count: float
) -> None:
    PrometheusObserver(registry=registry)(fact)
    assert registry.get_sample_value(name, label) == count


def test_prefix_and_two_observers_in_one_registry(registry: CollectorRegistry) -> None:
    PrometheusObserver("shop", registry)(Delivered(1))
    PrometheusObserver("bank", registry)(Delivered(2))
    assert registry.get_sample_value("shop_delivery_done_total") == 1
    assert registry.get_sample_value("bank_delivery_done_total") == 2


def test_event_types_are_bounded(registry: CollectorRegistry) -> None:
    observer = PrometheusObserver(registry=registry, label_limit=3)
    for n in range(50):
        observer(died(f"type-{n}"))
        observer(died("type-0"))
    lines = [line for line in generate_latest(registry).decode().splitlines() if "delivery_dead_total{" in line]
    assert len(lines) == 4
    assert registry.get_sample_value("relaybox_delivery_dead_total", {"event_type": "other"}) == 47
    assert registry.get_sample_value("relaybox_delivery_dead_total", {"event_type": "type-0"}) == 51


def test_junk_types_blind_no_other_label(registry: CollectorRegistry) -> None:
    observer = PrometheusObserver(registry=registry, label_limit=3)
    for n in range(100):
        observer(died(f"junk-{n}"))
    observer(Published("orders", 1, 0.1))
    observer(Retried("an id", "order.paid", 1, "x", timedelta(0)))
    assert registry.get_sample_value("relaybox_relay_published_total", {"sink": "orders"}) == 1
    assert registry.get_sample_value("relaybox_delivery_failed_total", {"event_type": "order.paid"}) == 1


def test_a_gauge_is_missing_before_the_first_and_after_a_failed_measurement(registry: CollectorRegistry) -> None:
    observer = PrometheusObserver(registry=registry)
    gauges = (
        "relaybox_lag_oldest_ms",
        "relaybox_queue_hot_depth",
        "relaybox_queue_cold_depth",
        "relaybox_wakeups_listening",
    )
    assert all(math.isnan(registry.get_sample_value(name) or 0.0) for name in gauges)
    observer(Depths(1, 2, timedelta(seconds=3)))
    observer(Depths(4, 5, None))
    assert math.isnan(registry.get_sample_value("relaybox_lag_oldest_ms") or 0.0)
    assert registry.get_sample_value("relaybox_queue_hot_depth") == 4


def test_a_gauge_does_not_outlive_its_measurements(registry: CollectorRegistry) -> None:
    clock = ManualClock()
    observer = PrometheusObserver(registry=registry, clock=clock, stale_after=timedelta(seconds=10))
    observer(Depths(1, 2, timedelta(seconds=3)))
    observer(WakeUps("listen", ""))
    clock.advance(10)
    assert registry.get_sample_value("relaybox_lag_oldest_ms") == 3000
    clock.advance(1)
    assert math.isnan(registry.get_sample_value("relaybox_lag_oldest_ms") or 0.0)
    assert math.isnan(registry.get_sample_value("relaybox_queue_hot_depth") or 0.0)
    assert registry.get_sample_value("relaybox_wakeups_listening") == 1  # a state, told when it changes


def test_no_error_text_in_the_exposition(registry: CollectorRegistry) -> None:
    PrometheusObserver(registry=registry)(died("A"))
    assert b"secret" not in generate_latest(registry)


# -- the backlog, asked at every scrape -------------------------------------------------------------


def test_backlog_of_a_real_outbox(registry: CollectorRegistry, outbox: Outbox) -> None:
    from relaybox import Event

    registry.register(BacklogCollector(outbox, "shop"))
    assert registry.get_sample_value("shop_backlog") == 0
    with outbox.transaction() as tx:
        outbox.write_all(tx, [Event("A", 1), Event("A", 2)])
    assert registry.get_sample_value("shop_backlog") == 2
    assert registry.get_sample_value("shop_backlog_dead") == 0


def test_backlog_is_absent_while_the_database_is_away(registry: CollectorRegistry) -> None:
    class Away:
        def status(self) -> None:
            raise ConnectionLost("secret host")

    registry.register(BacklogCollector(Away()))
    assert generate_latest(registry) == b""
