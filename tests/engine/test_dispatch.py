"""Between engine and listener: routing and interceptors."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, ClassVar

import pytest
from scripted_source import MakeEngine, ScriptedSource

from relaybox import BatchFailed, Event, Listeners, Retry
from relaybox.delivery import Delivery
from relaybox.engine.dispatch import Dispatch, RowBatches
from relaybox.engine.protocols import Handler
from relaybox.engine.threads import ListenerThreads
from relaybox.errors import ConfigError, ContractViolation, Unroutable
from relaybox.facts import Delivered, Died, Retried
from relaybox.listeners import registry
from relaybox.spi import Interceptor
from relaybox.testing import Probe


class Noting(Interceptor):
    def __init__(self, name: str, notes: list[str], fail: str = "") -> None:
        self.name, self.notes, self.fail = name, notes, fail

    def before_dispatch(self, delivery: Delivery) -> None:
        self.notes.append(f"{self.name} before")
        if self.fail == "before":
            raise ValueError(self.name)

    async def after_dispatch(self, delivery: Delivery, error: Exception | None) -> None:
        self.notes.append(f"{self.name} after {type(error).__name__}")
        if self.fail == "after":
            raise KeyError(self.name)


def delivery(type: str = "T", **options: Any) -> Delivery:
    return Delivery(Event(type, 1, **options), 1, 1, 1, 1e9, hot=False)


def dispatch(listeners: Listeners, *interceptors: Interceptor) -> Handler:
    listeners.interceptors = interceptors
    return Dispatch(listeners, ListenerThreads(1)).row


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def listeners(notes: list[str]) -> Listeners:
    made = Listeners()

    @made.on("T")
    async def listen(event: Event) -> None:
        notes.append("listener")

    @made.on("Bad")
    async def bad(event: Event) -> None:
        raise OSError("no")

    return made


async def test_before_in_order_after_in_reverse(listeners: Listeners, notes: list[str]) -> None:
    await dispatch(listeners, Noting("a", notes), Noting("b", notes))(delivery())
    assert notes == ["a before", "b before", "listener", "b after NoneType", "a after NoneType"]


async def test_after_gets_the_error(listeners: Listeners, notes: list[str]) -> None:
    with pytest.raises(OSError, match="no"):
        await dispatch(listeners, Noting("a", notes))(delivery("Bad"))
    assert notes == ["a before", "a after OSError"]


async def test_before_that_raises_short_circuits(listeners: Listeners, notes: list[str]) -> None:
    chain = [Noting("a", notes), Noting("b", notes, fail="before"), Noting("c", notes)]
    with pytest.raises(ValueError, match="b"):
        await dispatch(listeners, *chain)(delivery())
    assert notes == ["a before", "b before", "b after ValueError", "a after ValueError"]


async def test_after_that_raises_is_logged_and_changes_nothing(
    listeners: Listeners, notes: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "relaybox"):
        await dispatch(listeners, Noting("a", notes), Noting("b", notes, fail="after"))(delivery())
    assert notes[-2:] == ["b after NoneType", "a after NoneType"]
    assert "after_dispatch of Noting failed" in caplog.text


async def test_interceptors_from_functions(listeners: Listeners, notes: list[str]) -> None:
    async def before(given: Delivery) -> None:
        notes.append(f"before {given.event.type}")

    first, second = Interceptor.before(before), Interceptor.after(lambda given, error: notes.append(f"after {error}"))
    await dispatch(listeners, first, second)(delivery())
    assert notes == ["before T", "listener", "after None"]


@pytest.mark.parametrize("plain", [False, True])
async def test_after_learns_of_a_timeout(start: MakeEngine, probe: Probe, notes: list[str], plain: bool) -> None:
    """A listener that was stopped has not succeeded: None would say that it had."""
    source, listeners, release = ScriptedSource(), Listeners(), threading.Event()

    async def hang(event: Event) -> None:
        await asyncio.sleep(60)

    def block(event: Event) -> None:
        release.wait(30)

    listeners.on("T")(block if plain else hang)
    source.add()
    start(source, dispatch(listeners, Noting("a", notes)), timeout=timedelta(milliseconds=20), pause=3600)
    await probe.wait(Retried)
    release.set()
    assert notes == ["a before", "a after DeliveryError"]


async def test_an_interceptor_that_refuses_makes_a_retry_and_then_a_dead_letter(
    start: MakeEngine, probe: Probe, listeners: Listeners, notes: list[str]
) -> None:
    source = ScriptedSource()
    source.add()
    start(source, dispatch(listeners, Noting("a", notes, fail="before")), attempts=2)
    (died,) = await probe.wait(Died)
    assert (died.error, probe.count(Retried), "listener" in notes) == ("ValueError: a", 1, False)


async def test_unroutable_is_dead_at_once_and_says_what_was_meant(start: MakeEngine, probe: Probe) -> None:
    source, listeners = ScriptedSource(), Listeners()
    listeners.on("T", aggregate_type="Order")(lambda event: None)
    source.add()
    start(source, dispatch(listeners))
    (died,) = await probe.wait(Died)
    assert died.attempts == 1
    assert "for event type 'T' of aggregate type '__GLOBAL__'; there is one for aggregate type 'Order'" in died.error


async def test_the_exact_aggregate_type_comes_before_any() -> None:
    seen: list[Any] = []
    listeners = Listeners()
    listeners.on("T")(lambda event: seen.append("any"))
    listeners.on("T", aggregate_type="Order")(lambda event, given: seen.append(given.attempts))
    for kind in ("Order", "Other"):
        await dispatch(listeners)(delivery(aggregate_type=kind))
    await dispatch(listeners)(delivery())
    assert seen == [1, "any", "any"]
    with pytest.raises(Unroutable):
        await dispatch(listeners)(delivery("U"))


async def test_a_function_takes_everything() -> None:
    seen: list[str] = []
    every = registry(lambda event: seen.append(event.type))
    for kind in ("T", "U"):
        await dispatch(every)(delivery(kind))
    assert seen == ["T", "U"]


async def test_filters_and_unmatched_events_are_ignored() -> None:
    seen: list[Any] = []
    listeners = Listeners(where=lambda event: event.tenant != "other", unmatched="ignore")
    listeners.on("T", where=lambda event: event.key != "skip")(lambda event: seen.append(event.key))
    handler = Dispatch(listeners, ListenerThreads(1))
    for options in ({"key": "a"}, {"key": "skip"}, {"key": "b", "tenant": "other"}):
        await handler.row(delivery(**options))
    await handler.row(delivery("U"))
    assert (seen, handler.ignored) == (["a"], 3)


@dataclass
class Paid:
    event_type: ClassVar[str] = "OrderPaid"
    id: int
    amount: Decimal


async def test_payloads_are_read_into_the_model() -> None:
    seen: list[Paid] = []
    listeners = Listeners()

    @listeners.on(Paid)
    async def book(event: Event[Paid]) -> None:
        seen.append(event.payload)

    given = Delivery(Event.of(Paid(7, Decimal("1.50"))), 1, 1, 1, 1e9, hot=False)
    await dispatch(listeners)(given)
    assert seen == [Paid(7, Decimal("1.50"))]
    assert given.event.payload == {"id": 7, "amount": "1.50"}, "others see what was written"
    with pytest.raises(ContractViolation, match="expected Paid, got integer"):
        await dispatch(listeners)(delivery("OrderPaid"))


async def test_batches_are_halved_until_the_one_that_spoils_them_is_found(start: MakeEngine, probe: Probe) -> None:
    source, listeners, calls = ScriptedSource(), Listeners(), []

    @listeners.on_batch("T", size=8)
    async def handle(events: Sequence[Event]) -> None:
        calls.append(len(events))
        if any(event.payload == 5 for event in events):
            raise ValueError("poison")

    source.add(8)
    start(source, RowBatches(Dispatch(listeners, ListenerThreads(1))), attempts=1, workers=1)
    (died,) = await probe.wait(Died)
    await probe.wait(Delivered, 7)
    assert died.error == "ValueError: poison"
    assert calls[0] == 8


async def test_beside_batches_others_are_called_one_by_one(start: MakeEngine, probe: Probe, notes: list[str]) -> None:
    source, listeners = ScriptedSource(), Listeners(interceptors=[Noting("a", notes)])
    batches: list[int] = []
    tries: list[int] = []

    @listeners.on_batch("B", size=4)
    async def many(events: Sequence[Event]) -> None:
        batches.append(len(events))

    @listeners.on("T")
    async def one(event: Event, given: Delivery) -> None:
        tries.append(given.attempts)
        if given.attempts == 1:
            raise ValueError("not yet")

    source.add(2, type="B")
    source.add()
    start(source, RowBatches(Dispatch(listeners, ListenerThreads(1))), workers=1)
    await probe.wait(Delivered, 3)
    assert (batches, tries) == ([2], [1, 2])
    assert notes.count("a before") == notes.count("a after NoneType") + 1 == 4


async def test_a_batch_says_which_of_it_failed(start: MakeEngine, probe: Probe) -> None:
    source, listeners = ScriptedSource(), Listeners()

    @listeners.on_batch("T")
    def handle(events: Sequence[Event]) -> None:
        raise BatchFailed({event: KeyError("odd") for event in events if event.payload % 2})

    source.add(6)
    start(source, RowBatches(Dispatch(listeners, ListenerThreads(1))), attempts=1)
    await probe.wait(Died, 3)
    await probe.wait(Delivered, 3)


def test_ids_in_a_failed_batch_are_refused() -> None:
    """They would be the ids of no event, and what failed would count as done."""
    with pytest.raises(TypeError, match="to be given events"):
        BatchFailed({"7": ValueError()})  # type: ignore[dict-item]


async def test_a_listener_has_its_own_retry_and_timeout(start: MakeEngine, probe: Probe) -> None:
    source, listeners = ScriptedSource(), Listeners()

    @listeners.on("T", retry=Retry(attempts=2, delay=lambda attempt: "1ms"), timeout="20ms")
    async def hang(event: Event) -> None:
        await asyncio.sleep(60)

    source.add()
    handler = Dispatch(listeners, ListenerThreads(1), timeout=timedelta(minutes=1))
    start(source, handler.row, asked=handler, attempts=10, pause=3600)
    (died,) = await probe.wait(Died)
    assert (died.attempts, probe.count(Retried)) == (2, 1)
    assert "ran longer than 0.02 s" in died.error


async def test_plain_listeners_run_in_threads_with_the_callers_context(start: MakeEngine, probe: Probe) -> None:
    source, listeners, seen = ScriptedSource(), Listeners(), []
    listeners.on("T")(lambda event: seen.append(threading.current_thread().name))
    source.add()
    start(source, dispatch(listeners))
    await probe.wait(Delivered)
    assert seen[0].startswith("relaybox-listener")


def test_names_with_colons_are_not_taken_for_each_other() -> None:
    listeners, calls = Listeners(), []
    listeners.on("b:c", aggregate_type="a")(lambda event: calls.append(1))
    listeners.on("c", aggregate_type="a:b")(lambda event: calls.append(2))
    for place, event in enumerate((Event("b:c", 1, aggregate_type="a"), Event("c", 1, aggregate_type="a:b")), 1):
        found = listeners.find(event)
        assert found is not None
        found.call(None)
        assert calls[-1] == place
    assert listeners.find(Event("c", 1, aggregate_type="a")) is None
    assert listeners.event_types() == {"b:c", "c"}
    assert len(listeners) == 2


def test_a_decorator_without_a_type_says_how_it_is_written() -> None:
    def confirm(event: Event) -> None: ...

    for decorator in (Listeners().on, Listeners().on_batch):
        with pytest.raises(ConfigError, match=r'the type of the events that .*confirm takes: write @listeners.on\("'):
            decorator(confirm)  # type: ignore[call-overload]


def test_one_listener_per_type_unless_they_have_names() -> None:
    listeners = Listeners()
    listeners.on("T")(print)
    with pytest.raises(ConfigError, match="there is a listener for 'T' already, print"):
        listeners.on("T")(print)
    with pytest.raises(ConfigError, match="callable"):
        listeners.on("U")(5)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="it takes 3 arguments"):
        listeners.on("U")(lambda a, b, c: None)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="a sequence of events and nothing else"):
        listeners.on_batch("U")(lambda events, more: None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="size to be a positive number of events, got 0"):
        listeners.on_batch("U", size=0)
    with pytest.raises(ConfigError, match="`where` of print to be a plain function"):
        listeners.on("U", where=5)(print)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="retry to be a Retry"):
        listeners.on("U", retry=5)(print)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="unmatched to be 'dead' or 'ignore', got 'drop'"):
        Listeners(unmatched="drop")  # type: ignore[arg-type]
    assert (len(listeners), listeners.event_types(), listeners.find(Event("U", 1))) == (1, {"T"}, None)


def test_named_listeners_share_a_type_by_key() -> None:
    listeners = Listeners()
    for name in ("a", "b"):
        listeners.on("T", name=name)(print)
    with pytest.raises(ConfigError, match="a listener named 'a' for 'T' already"):
        listeners.on("T", name="a")(print)
    with pytest.raises(ConfigError, match="a and b take 'T': only the groups of topics share events"):
        registry(listeners)
    shared = registry(listeners, several=True)
    chosen = {
        key: {found.name for _ in range(3) if (found := shared.find(Event("T", 1, key=key)))} for key in "abcdefgh"
    }
    assert all(len(names) == 1 for names in chosen.values())
    assert len({name for names in chosen.values() for name in names}) == 2
