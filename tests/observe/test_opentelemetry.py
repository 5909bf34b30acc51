"""OpenTelemetry: metrics with dots, and traces that cross the outbox in the headers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, Tracer

from relaybox import Event, Listeners, Outbox
from relaybox.engine.rows.engine import Delivery
from relaybox.event import MAX_HEADERS
from relaybox.facts import (
    CallsUnderWay,
    CircuitChanged,
    Claimed,
    Delivered,
    Depths,
    Died,
    FeedStanding,
    Published,
    ReplicaLag,
    Standing,
    Strayed,
    TenantsWaiting,
    WakeUps,
)
from relaybox.observe.measures import MEASURES
from relaybox.observe.opentelemetry import OpenTelemetryObserver, TracingHook, TracingInterceptor
from relaybox.spi import WriterHook
from relaybox.testing import ManualClock, deliver_pending, published
from relaybox.testing.plugin import relaybox_url

__all__ = ["relaybox_url"]


# -- metrics ----------------------------------------------------------------------------------------


class Metrics:
    def __init__(self, **options: Any) -> None:
        self._reader = InMemoryMetricReader()
        provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.observer = OpenTelemetryObserver(meter=provider.get_meter("test"), **options)

    def read(self) -> dict[str, list[Any]]:
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        found = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]
        return {metric.name: list(metric.data.data_points) for metric in found if metric.data.data_points}


def test_names_have_dots_and_values_add_up() -> None:
    metrics = Metrics(prefix="shop.outbox")
    metrics.observer(Delivered(2))
    metrics.observer(Delivered(3))
    metrics.observer(Claimed(4, 0.002))
    read = metrics.read()
    assert read["shop.outbox.delivery.done"][0].value == 5
    assert read["shop.outbox.queue.cold.added"][0].value == 4
    assert (read["shop.outbox.claim.seconds"][0].count, read["shop.outbox.claim.seconds"][0].sum) == (1, 0.002)


def test_every_measure_is_exported() -> None:
    metrics = Metrics()
    metrics.observer(Depths(1, 2, timedelta(seconds=1)))
    metrics.observer(WakeUps("listen", ""))
    metrics.observer(CircuitChanged("kafka", False, "back"))
    metrics.observer(Standing(timedelta(seconds=1), 2))
    metrics.observer(Strayed(1))
    metrics.observer(CallsUnderWay("webhook", 3, 1, 2, 1, 0))
    metrics.observer(TenantsWaiting(20, 1))
    metrics.observer(FeedStanding("totals", timedelta(1), timedelta(1), 7, 0))
    metrics.observer(ReplicaLag("totals", 1))
    gauges = {f"relaybox.{measure.name}" for measure in MEASURES if measure.kind == "gauge"}
    assert set(metrics.read()) - {"relaybox.circuit.opened"} == gauges  # a counter that this fact leaves at zero


def test_gauges_are_absent_rather_than_wrong() -> None:
    clock = ManualClock()
    metrics = Metrics(clock=clock, stale_after=timedelta(seconds=10))
    assert metrics.read() == {}
    metrics.observer(Depths(1, 2, timedelta(0)))
    assert metrics.read()["relaybox.lag.oldest.ms"][0].value == 0
    metrics.observer(Depths(1, 2, None))
    assert set(metrics.read()) == {"relaybox.queue.hot.depth", "relaybox.queue.cold.depth"}
    clock.advance(11)
    assert metrics.read() == {}


def test_attributes_are_bounded() -> None:
    metrics = Metrics(label_limit=2)
    for n in range(10):
        metrics.observer(Died("id", f"t{n}", 1, "x"))
    points = metrics.read()["relaybox.delivery.dead"]
    assert {point.attributes["event_type"]: point.value for point in points} == {"t0": 1, "t1": 1, "other": 8}


def test_junk_types_blind_no_other_label() -> None:
    metrics = Metrics(label_limit=2)
    for n in range(100):
        metrics.observer(Died("id", f"junk-{n}", 1, "x"))
    metrics.observer(Published("orders", 1, 0.1))
    [point] = metrics.read()["relaybox.relay.published"]
    assert point.attributes == {"sink": "orders"}


# -- traces -----------------------------------------------------------------------------------------


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> Iterator[Tracer]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider.get_tracer("test")
    provider.shutdown()


def run(url: str, tracer: Tracer, listener: Any, *, link: bool = False, raise_errors: bool = True) -> Event:
    """One event written under a span "business" and delivered by a listener."""
    listeners = Listeners(interceptors=[TracingInterceptor(tracer, link=link)])
    listeners.on("OrderPlaced")(listener)
    with Outbox(url, hooks=[TracingHook()]) as outbox:
        outbox.migrate()
        with tracer.start_as_current_span("business"), outbox.transaction() as tx:
            outbox.write(tx, Event("OrderPlaced", {"card": "4111-1111-CARD"}, key="k"))
        (event,) = published(outbox)
        deliver_pending(outbox, listeners, raise_errors=raise_errors)
    return event


def spans(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def test_the_listener_continues_the_writers_trace(
    relaybox_url: str, tracer: Tracer, exporter: InMemorySpanExporter
) -> None:
    current = []

    def listener(event: Event) -> None:
        current.append(trace.get_current_span().get_span_context().span_id)

    event = run(relaybox_url, tracer, listener)
    found = spans(exporter)
    business, deliver = found["business"], found["deliver OrderPlaced"]
    assert deliver.parent is not None
    assert (deliver.parent.span_id, deliver.kind) == (business.context.span_id, SpanKind.CONSUMER)
    assert deliver.context.trace_id == business.context.trace_id
    assert current == [deliver.context.span_id]
    assert dict(deliver.attributes or {}) == {
        "messaging.system": "relaybox",
        "messaging.operation.name": "deliver",
        "messaging.operation.type": "process",
        "messaging.destination.name": "outbox",
        "messaging.message.id": event.id,
        "messaging.message.body.size": len(event.body),
        "relaybox.event.type": "OrderPlaced",
        "relaybox.aggregate.type": "__GLOBAL__",
        "relaybox.attempt": 1,
        "relaybox.source": "COLD",
    }
    assert not trace.get_current_span().get_span_context().is_valid  # nothing is left behind


def test_a_link_instead_of_a_parent(relaybox_url: str, tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    run(relaybox_url, tracer, lambda event: None, link=True)
    found = spans(exporter)
    deliver = found["deliver OrderPlaced"]
    assert deliver.parent is None
    assert [link.context.span_id for link in deliver.links] == [found["business"].context.span_id]


def test_an_error_shows_its_type_only(relaybox_url: str, tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    def listener(event: Event) -> None:
        raise ValueError(f"bad card {event.payload['card']}")

    run(relaybox_url, tracer, listener, raise_errors=False)
    deliver = spans(exporter)["deliver OrderPlaced"]
    assert (deliver.status.status_code, deliver.status.description) == (StatusCode.ERROR, "ValueError")
    assert (deliver.attributes or {})["error.type"] == "ValueError"
    assert "4111-1111-CARD" not in deliver.to_json()


def deliver_one(tracer: Tracer, event: Event, **options: Any) -> None:
    interceptor = TracingInterceptor(tracer, **options)
    delivery = Delivery(event, 1, 1, 1, 1e9, hot=True)
    interceptor.before_dispatch(delivery)
    interceptor.after_dispatch(delivery, None)


@pytest.mark.parametrize(
    "header", ["", "garbage", "00-short-00", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "ff-" + "a" * 32 + "-x-01"]
)
@pytest.mark.parametrize("link", [False, True])
def test_a_malformed_traceparent_is_ignored(
    tracer: Tracer, exporter: InMemorySpanExporter, header: str, link: bool
) -> None:
    deliver_one(tracer, Event("A", 1, headers={"traceparent": header}), link=link)
    (span,) = exporter.get_finished_spans()
    assert (span.parent, list(span.links)) == (None, [])


def test_unreadable_headers_are_ignored(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    now = datetime.now(UTC)
    deliver_one(tracer, Event.stored((1, "id", "A", None, None, None, None, b"1", "{oops", now, None, now)))
    assert len(exporter.get_finished_spans()) == 1


def test_the_workers_own_span_is_not_the_parent(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    with tracer.start_as_current_span("poll"):
        deliver_one(tracer, Event("A", 1))
    assert spans(exporter)["deliver A"].parent is None


def test_a_linked_trace_begins_anew_even_inside_a_span(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    header = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    with tracer.start_as_current_span("poll"):
        deliver_one(tracer, Event("A", 1, headers={"traceparent": header}), link=True)
    span = spans(exporter)["deliver A"]
    assert (span.parent, [link.context.span_id for link in span.links]) == (None, [int("b" * 16, 16)])


def test_after_without_before_is_harmless(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    TracingInterceptor(tracer).after_dispatch(Delivery(Event("A", 1), 1, 1, 1, 1e9, hot=True), None)
    assert exporter.get_finished_spans() == ()


# -- the hook ---------------------------------------------------------------------------------------


def test_hook_leaves_events_alone_outside_a_span() -> None:
    events = [Event("A", 1)]
    assert TracingHook().before_write(events) == events
    assert dict(events[0].headers) == {}


def test_hook_keeps_a_traceparent_that_is_there(tracer: Tracer) -> None:
    event = Event("A", 1, headers={"traceparent": "mine"})
    with tracer.start_as_current_span("business"):
        (written,) = TracingHook().before_write([event]) or ()
    assert written.traceparent == "mine"


def test_hook_never_makes_a_write_fail(tracer: Tracer) -> None:
    full = Event("A", 1, headers={f"h{n}": "" for n in range(MAX_HEADERS)})
    with tracer.start_as_current_span("business"):
        (written,) = TracingHook().before_write([full]) or ()
    assert written is full


def test_hooks_run_in_their_order(relaybox_url: str, tracer: Tracer) -> None:
    calls: list[str] = []

    class Noting(WriterHook):
        def before_write(self, events: Any) -> Any:
            calls.append("before")
            return None if events[0].type == "Suppressed" else [event.with_headers({"x": "1"}) for event in events]

        def after_write(self, events: Any) -> None:
            calls.append("write")

        def after_commit(self, events: Any) -> None:
            calls.append("commit")

    with Outbox(relaybox_url, hooks=[Noting(), TracingHook()]) as outbox:
        outbox.migrate()
        with tracer.start_as_current_span("business"), outbox.transaction() as tx:
            assert outbox.write(tx, Event("A", 1)) is not None
            assert outbox.write(tx, Event("Suppressed", 1)) is None
        (event,) = published(outbox)
    assert set(event.headers) == {"x", "traceparent"}
    assert calls == ["before", "write", "before", "commit"]
