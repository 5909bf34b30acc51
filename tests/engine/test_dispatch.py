"""Between engine and listener: routing and interceptors (D-05 … D-09)."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta
from typing import Any

import pytest
from scripted_source import MakeEngine, ScriptedSource

from relaybox import Event, Interceptor, Listeners
from relaybox.engine.rows.engine import Delivery
from relaybox.engine.threads import ListenerThreads
from relaybox.errors import ConfigError, Unroutable
from relaybox.facts import Delivered, Died, Retried
from relaybox.outbox.deliver import Dispatch
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


def dispatch(listeners: Listeners, *interceptors: Interceptor) -> Dispatch:
    return Dispatch(listeners, interceptors, ListenerThreads(1))


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

    listeners.register("T", block if plain else hang)
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
    listeners.register("T", lambda event: None, aggregate_type="Order")
    source.add()
    start(source, dispatch(listeners))
    (died,) = await probe.wait(Died)
    assert died.attempts == 1
    assert "no listener for event type 'T' of aggregate type '__GLOBAL__'; there is one for 'Order:T'" in died.error


async def test_routes_by_aggregate_type_and_event_type() -> None:
    seen: list[Any] = []
    listeners = Listeners()
    listeners.register("T", lambda event: seen.append("global"))
    listeners.register("T", lambda event, given: seen.append(given.attempts), aggregate_type="Order")
    await dispatch(listeners)(delivery())
    await dispatch(listeners)(delivery(aggregate_type="Order"))
    assert seen == ["global", 1]
    with pytest.raises(Unroutable):
        await dispatch(listeners)(delivery(aggregate_type="Other"))


async def test_plain_listeners_run_in_threads_with_the_callers_context(start: MakeEngine, probe: Probe) -> None:
    source, listeners, seen = ScriptedSource(), Listeners(), []
    listeners.register("T", lambda event: seen.append(threading.current_thread().name))
    source.add()
    start(source, dispatch(listeners))
    await probe.wait(Delivered)
    assert seen[0].startswith("relaybox-listener")


def test_names_with_colons_are_not_taken_for_each_other() -> None:
    listeners, calls = Listeners(), []
    listeners.register("b:c", lambda event: calls.append(1), aggregate_type="a")
    listeners.register("c", lambda event: calls.append(2), aggregate_type="a:b")
    for place, found in enumerate((listeners.find("a", "b:c"), listeners.find("a:b", "c")), 1):
        assert found is not None
        found.call(None)
        assert calls[-1] == place
    assert listeners.find("a:b:c", "") is None
    assert listeners.event_types() == {"b:c", "c"}
    assert (listeners.near_misses("c"), len(listeners)) == (["a:b:c"], 2)


def test_one_listener_per_pair() -> None:
    listeners = Listeners()
    listeners.register("T", print)
    with pytest.raises(ConfigError, match="'__GLOBAL__:T' is registered already"):
        listeners.register("T", print)
    with pytest.raises(ConfigError, match="callable"):
        listeners.register("U", 5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"to take \(event\) or \(event, delivery\), it takes 3"):
        listeners.register("U", lambda a, b, c: None)
    assert (len(listeners), listeners.event_types(), listeners.find("__GLOBAL__", "U")) == (1, {"T"}, None)
