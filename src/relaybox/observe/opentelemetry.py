"""Metrics and traces for OpenTelemetry: `pip install 'relaybox[opentelemetry]'`.

A trace crosses the outbox in the event's headers (W3C traceparent and tracestate): TracingHook puts the writer's span
there, TracingInterceptor continues it around the listener. Spans carry ids, types and sizes, never a payload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Token
from functools import partial
from typing import Any

from ..clock import SYSTEM_CLOCK, Clock
from ..delivery import Delivery
from ..durations import Duration, parse_duration
from ..errors import InvalidEvent, MissingExtra, Undecodable
from ..event import Event
from ..facts import Fact
from ..hooks import Interceptor, WriterHook
from .measures import MEASURES, STALE_AFTER, Gauged, Labels, Latest, Measure

try:
    from opentelemetry import context, metrics, trace
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from opentelemetry.trace import Link, Span, SpanKind, StatusCode, Tracer
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise MissingExtra("opentelemetry-api", "opentelemetry") from error

SCOPE = "relaybox"
_W3C = TraceContextTextMapPropagator()


class OpenTelemetryObserver:
    """
    outbox = Outbox(url, observers=[OpenTelemetryObserver(prefix="shop.outbox")])

    The same metrics as for Prometheus, with dots. A gauge that could not be measured, or not lately, is absent.
    """

    def __init__(
        self,
        prefix: str = "relaybox",
        meter: Meter | None = None,
        *,
        label_limit: int = 100,
        stale_after: Duration = STALE_AFTER,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        meter = meter or metrics.get_meter(SCOPE)
        self._label_limit = label_limit
        self._tell: dict[type[Fact], list[Callable[[Any], None]]] = {}
        for measure in MEASURES:
            fresh = partial(Latest, measure, parse_duration(stale_after, "stale_after").total_seconds(), clock)
            self._tell.setdefault(measure.fact, []).append(
                self._made(measure, f"{prefix}.{measure.name}", meter, fresh)
            )

    def __call__(self, fact: Fact) -> None:
        for tell in self._tell.get(type(fact), ()):
            tell(fact)

    def _made(self, measure: Measure, name: str, meter: Meter, fresh: Callable[[], Latest]) -> Callable[[Any], None]:
        """The instrument, and how a fact changes it."""
        if measure.kind == "histogram":
            histogram = meter.create_histogram(name, unit="s", description=measure.about)
            return lambda fact: histogram.record(measure.value(fact) or 0.0)
        if measure.kind == "gauge":
            gauged = Gauged(measure, self._label_limit, lambda _: fresh())

            def observed(_: CallbackOptions) -> Iterable[Observation]:
                return [
                    Observation(value, {measure.label: shown} if measure.label and shown else None)
                    for shown, latest in list(gauged.latest.items())
                    if (value := latest.get()) is not None
                ]

            meter.create_observable_gauge(name, [observed], description=measure.about)
            return gauged
        counter = meter.create_counter(name, description=measure.about)
        if measure.label is None:
            return lambda fact: counter.add(measure.value(fact) or 0.0)
        label, shown = measure.label, Labels(self._label_limit)
        return lambda fact: counter.add(measure.value(fact) or 0.0, {label: shown(getattr(fact, label))})


class TracingHook(WriterHook):
    """
    outbox = Outbox(url, hooks=[TracingHook()])

    Events written inside a span carry it in their headers; one that has a traceparent already keeps it.
    """

    def before_write(self, events: Sequence[Event]) -> Sequence[Event] | None:
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        return [_with(event, carrier) for event in events] if carrier else events


def _with(event: Event, carrier: Mapping[str, str]) -> Event:
    """Tracing must not make a write fail: an event without room for the headers goes without them."""
    if event.traceparent is not None:
        return event
    try:
        return event.with_headers(carrier)
    except InvalidEvent:
        return event


class TracingInterceptor(Interceptor):
    """
    listeners = Listeners(interceptors=[TracingInterceptor()])

    One consumer span per attempt, current while the listener runs. Its parent is the writer's span; with `link=True` it
    begins a trace of its own that links to the writer's: better where events wait for hours. A malformed traceparent
    counts as none.
    """

    def __init__(self, tracer: Tracer | None = None, *, link: bool = False, destination: str = "outbox") -> None:
        self._tracer = tracer or trace.get_tracer(SCOPE)
        self._link = link
        self._destination = destination
        self._open: dict[Delivery, tuple[Span, Token[context.Context]]] = {}

    def before_dispatch(self, delivery: Delivery) -> None:
        event = delivery.event
        writer = _W3C.extract(_headers(event), context=context.Context())
        origin = trace.get_current_span(writer).get_span_context()
        linked = self._link and origin.is_valid
        span = self._tracer.start_span(
            f"deliver {event.type}",
            context=context.Context() if linked else writer,
            kind=SpanKind.CONSUMER,
            links=[Link(origin)] if linked else (),
            attributes={
                "messaging.system": "relaybox",
                "messaging.operation.name": "deliver",
                "messaging.operation.type": "process",
                "messaging.destination.name": self._destination,
                "messaging.message.id": event.id,
                "messaging.message.body.size": len(event.body),
                "relaybox.event.type": event.type,
                "relaybox.aggregate.type": event.aggregate_type,
                "relaybox.attempt": delivery.attempts,
                "relaybox.source": delivery.source,
            },
        )
        self._open[delivery] = span, context.attach(trace.set_span_in_context(span))

    def after_dispatch(self, delivery: Delivery, error: Exception | None) -> None:
        """The type of an error only: its text may quote the payload."""
        opened = self._open.pop(delivery, None)
        if opened is None:  # before_dispatch failed
            return
        span, token = opened
        context.detach(token)
        if error is not None:
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(StatusCode.ERROR, type(error).__qualname__)
        span.end()


def _headers(event: Event) -> Mapping[str, str]:
    try:
        return event.headers
    except Undecodable:
        return {}
