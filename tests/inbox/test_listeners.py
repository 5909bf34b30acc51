"""Listeners of an inbox: by type, with models, retries, timeouts and interceptors; and the life of their service."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import pytest

from kit import one
from relaybox import (
    AsyncInbox,
    ConfigError,
    Delivery,
    Event,
    Inbox,
    Listeners,
    Reject,
    Retry,
)
from relaybox.errors import Closed
from relaybox.spi import Interceptor
from relaybox.types import Counts, Order

from .effects import QUICK, asay, effects, say, text_of, with_effects
from .kit import Twin, aprocessed, arrived, pending_ids, processed

ONE_TRY = QUICK.replaced({"delivery.retry.attempts": 1})


@pytest.fixture
def home(url: str) -> str:
    return with_effects(url)


@pytest.fixture(params=[1, 5], ids=["single", "batch"])
def batch(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=[False, True], ids=["function", "coroutine"])
def coroutine(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@dataclass
class OrderPlaced:
    number: int


def writing(coroutine: bool, then: Any = lambda event: None) -> Any:
    """A listener whose effect is a row."""

    def plain(event: Event, handle: Any) -> None:
        say(handle, text_of(event))
        then(event)

    async def waits(event: Event, handle: Any) -> None:
        await asay(handle, text_of(event))
        then(event)

    return waits if coroutine else plain


def dead(url: str) -> dict[str, str]:
    with Inbox(url) as inbox:
        return {letter.event.type: str(letter.error) for letter in inbox.dead.list()}


async def test_a_listener_has_its_model_its_sender_and_its_transaction(
    home: str, is_async: bool, coroutine: bool, batch: int
) -> None:
    seen: list[tuple[Any, str]] = []
    listeners: Listeners[Any] = Listeners()
    listeners.on(OrderPlaced)(writing(coroutine, lambda event: seen.append((event.payload, event.sender))))
    async with Twin(home, is_async=is_async) as inbox:
        first, second = Event.of(OrderPlaced(7), key="k"), Event.of(OrderPlaced(8), key="k")
        await inbox.call("accept", None, first, sender="shop")
        await inbox.call("accept", None, second)
        done = await inbox.process(listeners, settings=QUICK, batch=batch)
    assert done == Counts(done=2)
    assert sorted(seen, key=lambda pair: pair[0].number) == [(OrderPlaced(7), "shop"), (OrderPlaced(8), "")]
    assert effects(home) == sorted([first.id, second.id])


async def test_what_does_not_fit_its_model_is_a_failure_of_the_message(url: str) -> None:
    listeners: Listeners[Any] = Listeners()
    listeners.on(OrderPlaced)(lambda event: event.payload)
    with Inbox(url) as inbox:
        inbox.accept(None, Event("OrderPlaced", {"number": "many"}))
        assert processed(inbox, listeners, settings=ONE_TRY).dead == 1
    assert "ContractViolation" in dead(url)["OrderPlaced"]


async def test_what_no_listener_takes_dies_or_is_ignored(home: str, coroutine: bool, batch: int) -> None:
    for unmatched, expected in (("dead", Counts(done=2, dead=1, ignored=1)), ("ignore", Counts(done=3, ignored=2))):
        listeners: Listeners[Any] = Listeners(unmatched=unmatched)  # type: ignore[arg-type]
        listeners.on("Known", where=lambda event: event.payload != 2)(writing(coroutine))
        with Inbox(home) as inbox:
            inbox.accept_all(None, [Event("Known", 1), Event("Known", 2), Event("Unknown", 3)])
            assert processed(inbox, listeners, settings=QUICK, batch=batch) == expected
    assert len(effects(home)) == 2
    assert pending_ids(home) == []
    assert "no listener for event type 'Unknown'" in dead(home)["Unknown"]
    assert one(home, "SELECT count(*) FROM inbox_done") == 5


async def test_what_is_ignored_needs_nothing_of_a_session(home: str) -> None:
    import sqlalchemy as sa

    engine = sa.create_engine(
        home.replace("postgresql://", "postgresql+psycopg://").replace("mysql://", "mysql+pymysql://")
    )
    listeners: Listeners[Any] = Listeners(unmatched="ignore")
    listeners.on("Known")(writing(False))
    with Inbox(home) as inbox:
        inbox.accept_all(None, [Event("Known", 1), Event("Unknown", 2)])
        assert processed(inbox, listeners, settings=QUICK, session=engine) == Counts(done=2, ignored=1)
    engine.dispose()
    assert len(effects(home)) == 1


async def test_retries_and_times_of_single_listeners(home: str, batch: int) -> None:
    """A listener's own go before those of the settings."""
    tries: dict[str, int] = {"Twice": 0, "Once": 0}
    listeners: Listeners[Any] = Listeners()

    async def fail(event: Event) -> None:
        tries[event.type] += 1
        raise ValueError("no")

    @listeners.on("Slow", timeout="50ms")
    async def slow(event: Event) -> None:
        await asyncio.sleep(60)

    listeners.on("Twice", retry=Retry(attempts=2, base="1ms"))(fail)
    listeners.on("Once")(fail)
    async with AsyncInbox(home, settings=ONE_TRY) as inbox:
        await inbox.accept_all(None, [Event("Twice", 1), Event("Once", 2), Event("Slow", 3)])
        started = time.monotonic()
        async with inbox.process(listeners, batch=batch) as processing:
            while processing.counts.dead < 3:
                assert time.monotonic() < started + 20
                await asyncio.sleep(0.01)
    assert tries == {"Twice": 2, "Once": 1}
    assert "TimeoutError" in dead(home)["Slow"]


class Noted(Interceptor):
    def __init__(self, url: str) -> None:
        self.url = url
        self.notes: list[tuple[str, Any, str | None]] = []

    def before_dispatch(self, delivery: Delivery) -> None:
        self.notes.append(("before", delivery.event.payload, None))

    async def after_dispatch(self, delivery: Delivery, error: Exception | None) -> None:
        there = delivery.event.id in await asyncio.to_thread(effects, self.url)
        self.notes.append(("after", delivery.event.payload, type(error).__name__ if error else f"committed: {there}"))


async def test_interceptors_stand_around_the_transaction(home: str, coroutine: bool, batch: int) -> None:
    def refuse(event: Event) -> None:
        if event.payload == 2:
            raise Reject("no")

    noted = Noted(home)
    listeners: Listeners[Any] = Listeners(interceptors=[noted])
    listeners.on("A")(writing(coroutine, refuse))
    async with AsyncInbox(home) as inbox:
        await inbox.accept_all(None, [Event("A", 1), Event("A", 2)])
        await aprocessed(inbox, listeners, settings=QUICK, batch=batch)
    assert sorted(noted.notes) == [
        ("after", 1, "committed: True"),
        ("after", 2, "Reject"),
        ("before", 1, None),
        ("before", 2, None),
    ]


async def test_plain_and_async_listeners_side_by_side(home: str) -> None:
    listeners: Listeners[Any] = Listeners()
    listeners.on("Plain")(writing(False))
    listeners.on("Async")(writing(True))
    with Inbox(home) as inbox:
        events = [Event("Plain", 1), Event("Async", 2), Event("Plain", 3)]
        inbox.accept_all(None, events)
        assert processed(inbox, listeners, settings=QUICK).done == 3
        for options in ({"batch": 2}, {"session": object}):
            with pytest.raises(ConfigError, match="all plain or all async"):
                inbox.process(listeners, **options)  # type: ignore[arg-type]
    assert effects(home) == sorted(event.id for event in events)


def test_listeners_that_an_inbox_cannot_have(url: str) -> None:
    several: Listeners[Any] = Listeners()
    several.on("A", name="one")(lambda event: None)
    several.on("A", name="other")(lambda event: None)
    batches: Listeners[Any] = Listeners()
    batches.on_batch("A")(lambda events: None)
    with Inbox(url) as inbox:
        with pytest.raises(ConfigError, match="one and other"):
            inbox.process(several)
        with pytest.raises(ConfigError, match=r"process\(batch=…\)"):
            inbox.process(batches)
        with pytest.raises(ConfigError, match="expected Listeners or a function"):
            inbox.process("handle")  # type: ignore[arg-type]


async def test_a_plain_function_that_returns_a_coroutine_is_told(url: str) -> None:
    """Nobody would have awaited it, and the message would count as processed."""

    made: list[Any] = []

    def handle(event: Event, connection: Any) -> Any:
        made.append(asyncio.sleep(0))
        return made[0]

    with Inbox(url) as inbox:
        inbox.accept(None, arrived(1))
        assert processed(inbox, handle, settings=ONE_TRY).dead == 1
    made[0].close()
    assert "write async def" in dead(url)["OrderPlaced"]


# -- the life of the service ----------------------------------------------------------------------------


async def test_closing_an_inbox_stops_its_services(home: str, is_async: bool) -> None:
    async with Twin(home, is_async=is_async, settings=QUICK) as inbox:
        service = inbox.raw.process(writing(is_async))
        assert service.name == "processing of inbox"
        assert service.health().reasons == ("not running",)
        started = service.start()
        if is_async:
            await started
        assert service.health().level == "ok"
        await inbox.call("accept", None, arrived(1))
        done = service.drain(timeout=20)
        assert (await done if is_async else done) == Counts(done=1)
    assert service.health().reasons == ("not running",)
    assert one(home, "SELECT count(*) FROM inbox_instance") == 0
    late = inbox.raw.process(writing(is_async))
    for over, reason in ((service, "make a new one"), (late, "inbox 'inbox' is closed")):
        with pytest.raises(Closed, match=reason):
            await over.start() if is_async else over.start()


# -- what all processes agree on --------------------------------------------------------------------------


async def test_a_change_of_what_is_agreed_is_audited(url: str, is_async: bool) -> None:
    async with Twin(url, is_async=is_async) as inbox:
        await inbox.call("configure", order=Order(), retry=Retry(attempts=3), reason="numbered now", actor="ann")
        assert (await inbox.call("configure")).order == Order()
        (entry,) = await inbox.call("audit")
    assert (entry.verb, entry.what, entry.actor, entry.reason) == (
        "configure",
        "inbox inbox: order, retry",
        "ann",
        "numbered now",
    )


async def test_an_async_inbox_takes_no_handle_that_blocks_its_loop(engine: str, url: str) -> None:
    if engine == "sqlite":
        pytest.skip("a file answers without a network")
    from relaybox.drivers import open_sync

    database = open_sync(url)
    async with AsyncInbox(url) as inbox:
        with database.connection() as connection:
            connection.begin()
            with pytest.raises(ConfigError, match="would block the event loop; use Inbox"):
                await inbox.accept(connection.raw, arrived(1))
            connection.rollback()
    database.close()
