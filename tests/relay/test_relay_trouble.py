"""The relay against sinks and databases that misbehave: order, isolation, nobody stuck, no attempt burned."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from relay_kit import settings
from scripted_sink import ScriptedSink

from kit import migrated
from relaybox import AsyncRelay, Event, Outbox
from relaybox.brokers.formats import renderer
from relaybox.drivers import open_sync
from relaybox.engine.protocols import Delivery
from relaybox.errors import BrokerUnavailable, ConfigError, DeliveryError, Undecodable
from relaybox.facts import CircuitChanged, Delivered, Died, Observers, Retried
from relaybox.outbox.source import OrderedSource
from relaybox.relay.circuit import Circuit
from relaybox.relay.routing import router
from relaybox.spi import Answer, Features, Message
from relaybox.store.claims import Claim
from relaybox.store.outbox.values import KeyRound
from relaybox.tasks import cancelled
from relaybox.testing import ManualClock, Probe
from relaybox.testing.servers import require
from relaybox.testing.servers.gate import TcpGate

FAST = timedelta(milliseconds=1)


def write(url: str, *events: Event) -> None:
    with Outbox(url) as box, box.transaction() as tx:
        box.write_all(tx, list(events))


def of_key(key: str, count: int, first: int = 0) -> list[Event]:
    return [Event("T", n, key=key) for n in range(first, first + count)]


# -- order inside one publish -----------------------------------------------------------------------


async def test_one_that_cannot_be_prepared_yet_does_not_pass_its_predecessor(url: str, probe: Probe) -> None:
    """The route of number 1 fails once while number 0 waits for the broker: 1 must not come back before it is out."""
    failures = iter([True])
    sink = ScriptedSink(sequences=True)

    def route(event: Event) -> str:
        if event.key == "a" and event.payload == 1 and next(failures, False):
            raise LookupError("the table of routes is being replaced")
        return "x"

    sink.gate = asyncio.Event()
    write(url, *of_key("a", 3))
    async with AsyncRelay(url, sink, to=route, observers=[probe], settings=settings({"delivery.workers": 2})) as relay:
        while not sink.calls:
            await asyncio.sleep(0.001)
        for count in (1, 2):  # what goes out with the second of these was claimed after the failure was settled
            gate, sink.gate = sink.gate, None
            await asyncio.to_thread(write, url, Event("T", count, key="b"))
            relay._input._running.engine.wake()  # type: ignore[union-attr]
            await probe.wait(Delivered, count)
            sink.gate = gate
        sink.gate.set()
        await probe.wait(Delivered, 5)
    assert sink.by_key()["a"] == [0, 1, 2]


async def test_a_resting_destination_holds_back_the_rest_of_its_key(url: str, probe: Probe) -> None:
    """0 and 1 of a key share a batch; 0 waits for its destination, so 1 waits too, although its own is there."""
    sink = ScriptedSink(sequences=True)
    async with AsyncRelay(
        url, sink, to="{type}", observers=[probe], settings=settings({"relay.retry.attempts": 1})
    ) as relay:
        publisher = relay._input._running.engine._workers._batches  # type: ignore[union-attr]
        hour = timedelta(hours=1)
        publisher._pauses.failed("orders", BrokerUnavailable("away", destination="orders", retry_after=hour))
        events = [Event("orders", 0, key="a"), Event("payments", 1, key="a"), Event("payments", 0, key="b")]
        await asyncio.to_thread(write, url, *events)
        relay._input._running.engine.wake()  # type: ignore[union-attr]
        await probe.wait(Retried)
        await probe.wait(Delivered)
    assert [(m.key, m.event.payload) for m in sink.sent] == [("b", 0)]
    assert probe.of(Died) == []
    with Outbox(url) as box:
        assert (box.status().due, box.status().delayed) == (1, 1)


async def test_the_one_that_tries_a_destination_again_takes_its_key_along(sqlite: str, probe: Probe) -> None:
    """After the pause 0 tries the destination; 1 of the same key rests meanwhile and must not be concluded first."""
    down = True

    def verdict(message: Message) -> Answer:
        return BrokerUnavailable("no leader", destination="x", retry_after=FAST) if down else None

    sink = ScriptedSink(verdict, sequences=True)
    write(sqlite, *of_key("a", 50))
    async with AsyncRelay(sqlite, sink, to="x", observers=[probe], settings=settings({"delivery.workers": 1})):
        await probe.wait(Retried, 2)
        down = False
        await probe.wait(Delivered, 50, timeout=20)
    assert sink.by_key()["a"] == list(range(50))
    assert {fact.error for fact in probe.of(Retried)} == {"BrokerUnavailable: no leader"}


# -- sinks that break their contract ----------------------------------------------------------------


class Unruly(ScriptedSink):
    """Raises what `moods` says for a destination, once."""

    def __init__(self, moods: dict[str, BaseException], **features: object) -> None:
        super().__init__(**features)
        self.moods = moods

    async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
        answers = await super().publish(messages)
        for message in messages:
            if (mood := self.moods.pop(message.destination, None)) is not None:
                self.sent = [m for m in self.sent if m not in messages]
                raise mood
        return answers


@pytest.mark.parametrize(
    "mood",
    [RuntimeError("a bug"), TimeoutError(), asyncio.CancelledError(), BrokerUnavailable("off", destination="bad")],
)
async def test_one_destination_in_trouble_costs_the_others_nothing(
    sqlite: str, probe: Probe, mood: BaseException
) -> None:
    write(sqlite, *[Event("T", n, key=f"k{n}", tenant="bad" if n % 2 else "good") for n in range(10)])
    sink = Unruly({"bad": mood}, by_destination=True)
    async with AsyncRelay(sqlite, sink, to="{tenant}", observers=[probe], settings=settings()):
        await probe.wait(Delivered, 10)
    assert len(sink.sent) == 10
    assert {fact.event_id for fact in probe.of(Retried)} <= {m.id for m in sink.sent if m.destination == "bad"}
    assert all("Group" not in fact.error for fact in probe.of(Retried))
    assert [len(call) for call in sink.calls if call[0].destination == "good"] == [1] * 5
    assert probe.of(CircuitChanged) == []


@pytest.mark.parametrize("mood", [RuntimeError("a bug"), TimeoutError(), asyncio.CancelledError()])
async def test_a_publish_that_raises_anything_is_tried_again(sqlite: str, probe: Probe, mood: BaseException) -> None:
    write(sqlite, *of_key("a", 3))
    sink = Unruly({"x": mood}, sequences=True)
    async with AsyncRelay(sqlite, sink, to="x", observers=[probe], settings=settings({"delivery.workers": 1})):
        await probe.wait(Delivered, 3)
    assert sink.by_key()["a"] == [0, 1, 2]


@pytest.mark.parametrize("answers", [0, 1, 5])
async def test_too_few_or_too_many_answers_lose_nothing(sqlite: str, probe: Probe, answers: int) -> None:
    class Miscounting(ScriptedSink):
        async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
            right = await super().publish(messages)
            return [None] * answers if len(self.calls) == 1 else right

    write(sqlite, *of_key("a", 3))
    sink = Miscounting(sequences=True)
    async with AsyncRelay(sqlite, sink, to="x", observers=[probe], settings=settings({"delivery.workers": 1})) as relay:
        await probe.wait(Delivered, 3)
        await relay.drain()
    assert list(dict.fromkeys(sink.by_key()["a"])) == [0, 1, 2]


@pytest.mark.parametrize("destination", [None, "", 7])
async def test_a_route_to_nowhere_is_rejected_alone(sqlite: str, probe: Probe, destination: object) -> None:
    write(sqlite, *of_key("a", 1), *of_key("b", 1))
    route = lambda event: destination if event.key == "a" else "x"  # noqa: E731
    sink = ScriptedSink()
    async with AsyncRelay(sqlite, sink, to=route, observers=[probe]):  # type: ignore[arg-type]
        await probe.wait(Died)
        await probe.wait(Delivered)
    assert [m.key for call in sink.calls for m in call] == ["b"]


# -- outages ----------------------------------------------------------------------------------------


async def test_a_probe_whose_client_cancels_itself_is_just_a_failed_probe() -> None:
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise asyncio.CancelledError

    circuit = Circuit("x", ask, Observers(), ManualClock())
    clock = circuit._clock
    assert isinstance(clock, ManualClock)
    circuit.trip(BrokerUnavailable("gone"))
    async with asyncio.timeout(5):
        while circuit.is_open:
            clock.advance(1)
            await asyncio.sleep(0)
    assert asked == 2


async def test_a_probe_that_is_told_when_to_come_back_waits_so_long() -> None:
    clock = ManualClock()
    asked: list[float] = []

    async def ask() -> None:
        asked.append(clock.monotonic())
        if len(asked) == 1:
            raise BrokerUnavailable("quota", retry_after=timedelta(seconds=30))

    circuit = Circuit("x", ask, Observers(), clock)
    circuit.trip(BrokerUnavailable("gone"))
    while circuit.is_open:
        await clock.wait_for_sleepers()
        clock.advance(0.5)
        for _ in range(3):
            await asyncio.sleep(0)
    assert asked[1] - asked[0] >= 30


async def test_a_broker_that_hangs_at_the_start_is_an_outage(sqlite: str, probe: Probe) -> None:
    class Hanging(ScriptedSink):
        tried = 0

        async def open(self) -> None:
            self.tried += 1
            if self.tried == 1:
                await asyncio.Event().wait()
            await super().open()

    write(sqlite, *of_key("a", 2))
    sink = Hanging()
    short = settings({"relay.timeout": "200ms"})
    async with AsyncRelay(sqlite, sink, to="x", observers=[probe], settings=short):
        await probe.wait(Delivered, 2, timeout=20)
    assert probe.of(CircuitChanged)[0].reason == "no connection within 0.2 s"


async def test_wrong_settings_that_show_only_later_say_so(
    sqlite: str, probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker was away at the start; when it is back it refuses our settings."""

    class Picky(ScriptedSink):
        fine = False

        async def open(self) -> None:
            await super().open()
            if not self.fine:
                self.refused.set()
                raise ConfigError("expected a queue of type stream")

    sink = Picky()
    sink.away = "connection refused"
    write(sqlite, *of_key("a", 1))
    async with AsyncRelay(sqlite, sink, to="x", observers=[probe]) as relay:
        sink.away = None
        for _ in range(3):
            sink.refused.clear()
            await sink.refused.wait()
        assert relay._circuit is not None
        assert relay._circuit.reason == "expected a queue of type stream"
        sink.fine = True
        await probe.wait(Delivered)
    assert caplog.text.count("expected a queue of type stream") == 1


async def test_the_log_says_why_a_sink_refused(sqlite: str, probe: Probe, caplog: pytest.LogCaptureFixture) -> None:
    """The type of the error alone sends everybody to the database."""
    sink = ScriptedSink(lambda m: None if len(sink.calls) > 2 else DeliveryError("webhook 'billing' answered 401"))
    write(sqlite, *of_key("a", 1))
    async with AsyncRelay(sqlite, sink, to="x", observers=[probe], settings=settings()):
        await probe.wait(Delivered)
    assert caplog.text.count("failed at attempt 1: DeliveryError: webhook 'billing' answered 401") == 1


# -- stopping ---------------------------------------------------------------------------------------


async def test_the_database_is_closed_although_the_sink_cannot_be(sqlite: str) -> None:
    class Sticky(ScriptedSink):
        async def close(self) -> None:
            raise OSError("the socket does not close")

    relay = AsyncRelay(sqlite, Sticky(), to="x")
    with pytest.raises(OSError, match="does not close"):
        async with relay:
            db = relay._db
    assert db._closed  # type: ignore[union-attr]


async def test_a_relay_is_alive_while_it_starts(sqlite: str) -> None:
    class Slow(ScriptedSink):
        def __init__(self) -> None:
            super().__init__()
            self.go = asyncio.Event()

        async def open(self) -> None:
            await self.go.wait()

    sink = Slow()
    relay = AsyncRelay(sqlite, sink, to="x")
    starting = asyncio.create_task(relay.__aenter__())
    await asyncio.sleep(0)
    health = relay.health()
    assert (health.live, health.ready, health.reasons) == (True, False, ("not running",))
    sink.go.set()
    await starting
    assert relay.health().ready
    await relay.stop()
    assert not relay.health().ready


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.parametrize(("busy", "strategy"), [(True, "advisory"), (False, "shards")])
async def test_a_stop_ends_although_the_database_is_a_black_hole(driver: str, busy: bool, strategy: str) -> None:
    """No reset, no answer: as when a machine is gone or a firewall forgot the connection."""
    direct = require("postgres-wheel", durable=False).create_database()
    with migrated(direct):
        pass
    write(direct, *of_key("a", 3))
    sink = ScriptedSink()
    sink.gate = asyncio.Event()
    with TcpGate(urlsplit(direct).port or 0) as gate:
        url = gate.through(direct).replace("postgresql:", f"postgresql+{driver}:")
        chosen = settings({"delivery.stop_timeout": "200ms", "order.strategy": strategy})
        relay = await AsyncRelay(url, sink, to="x", settings=chosen).__aenter__()
        while not sink.calls:
            await asyncio.sleep(0.001)
        gate.blackhole()
        node = relay._input._running
        assert node is not None
        while busy and relay._db.slots._value > 2:  # a claim and a heartbeat wait for their answers
            node.engine.wake()
            await asyncio.sleep(0.01)
        closing_down = asyncio.create_task(relay.stop())
        ended, _ = await asyncio.wait([closing_down], timeout=15)
        await cancelled(closing_down)
        left = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("relaybox")]
    assert ended
    assert left == []


# -- once -------------------------------------------------------------------------------------------

SHORT = timedelta(seconds=1)


async def test_a_silence_is_not_the_end(sqlite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While no heartbeat reaches the database nothing is claimed; that is no reason to think that nothing is there."""
    sink = ScriptedSink()
    async with AsyncRelay(sqlite, sink, to="x") as relay:
        await relay.drain()
        node = relay._input._running
        assert node is not None
        await node._registration.presence._loops.close()
        node._source.pulse.alive_until = 0.0
        claims = 0

        async def counted(limit: int, past: Collection[str] = ()) -> list[Delivery]:
            nonlocal claims
            claims += 1
            return await OrderedSource.claim(node._source, limit, past)  # type: ignore[arg-type]

        monkeypatch.setattr(node._source, "claim", counted)
        await asyncio.to_thread(write, sqlite, *of_key("a", 3))
        draining = asyncio.create_task(relay.drain())
        while claims < 3:
            await asyncio.sleep(0.001)
        assert not draining.done()
        node._source.pulse.alive_until = math.inf
        await draining
        status = await relay.status()
    assert (status.due, len(sink.sent)) == (0, 3)


async def test_what_a_dead_process_had_is_waited_for(url: str, probe: Probe) -> None:
    """It owns every shard, has claimed one event and is not known to be dead yet."""
    write(url, *of_key("a", 3))
    with Outbox(url) as box, closing(open_sync(url)) as db:
        shards = box.settings.order.shards
        dead = db.run(box.store.register("dead", "relay", SHORT, None))
        db.run(box.store.acquire_shards(dead, shards, shards, SHORT, None, None))
        assert db.run(box.store.claim_ordered(Claim(dead, 7, timedelta(minutes=1)), 1, shards, None, KeyRound()))
    sink = ScriptedSink()
    async with AsyncRelay(
        url, sink, to="x", observers=[probe], settings=settings({"delivery.instance_ttl": SHORT})
    ) as relay:
        await relay.drain()
        status = await relay.status()
    assert (status.due, status.claimed) == (0, 0)
    assert sink.by_key() == {"a": [0, 1, 2]}


async def test_what_is_blocked_is_not_waited_for_long(url: str, probe: Probe) -> None:
    write(url, *of_key("a", 3), *of_key("b", 2))
    sink = ScriptedSink(lambda m: OSError("no") if m.key == "a" else None)
    chosen = settings({"delivery.instance_ttl": SHORT, "relay.retry.attempts": 1, "order.on_exhausted": "park"})
    async with AsyncRelay(url, sink, to="x", observers=[probe], settings=chosen) as relay:
        await relay.drain()
        status = await relay.status()
    assert (status.due, status.dead, sink.by_key()) == (2, 1, {"b": [0, 1]})


# -- messages and routes ----------------------------------------------------------------------------

HTTP = Features(keyed_order=True, dedup=False, attribute_prefix="ce-", percent_encoded=True)


def json_event(body: bytes) -> Event:
    """As it is read from a row, which may hold what an Event refuses."""
    now = datetime.now(UTC)
    return Event.stored((1, "e", "T", None, None, None, "application/json", body, None, now, None, now))


@pytest.mark.parametrize(
    "body", [b"NaN", b"[-Infinity]", b'{"n":1}'.decode().encode("utf-16"), b'\xef\xbb\xbf{"n":1}', b"[" * 99_999]
)
def test_what_is_not_json_never_gets_into_an_envelope(body: bytes) -> None:
    with pytest.raises(Undecodable):
        renderer("cloudevents-structured", "/s", HTTP)(json_event(body), "x")


def test_a_number_of_any_length_is_json() -> None:
    message = renderer("cloudevents-structured", "/s", HTTP)(json_event(b"9" * 5000), "x")
    assert message.body.endswith(b',"data":' + b"9" * 5000 + b"}")


@pytest.mark.parametrize("form", ["plain", "cloudevents"])
@pytest.mark.parametrize("spell", [str, str.upper, str.title, lambda name: name.replace("_", "-").title()])
def test_no_spelling_of_a_header_replaces_what_the_envelope_says(form: Any, spell: Callable[[str], str]) -> None:
    render = renderer(form, "/s", HTTP)
    own = render(Event("T", 1, key="k", tenant="t"), "x").attributes
    forged = {spell(name): "forged" for name in own}
    message = render(Event("T", 1, key="k", tenant="t", headers={**forged, "color": "red"}), "x")
    assert "forged" not in message.attributes.values()
    assert message.attributes.keys() == own.keys() | {"color"}


@pytest.mark.parametrize("form", ["plain", "cloudevents", "cloudevents-structured"])
def test_headers_of_another_program_that_are_no_text_are_no_riddle(form: Any) -> None:
    event = Event("T", 1)
    row = (1, event.id, "T", None, "k", None, None, b"1", '{"n":1}', event.occurred_at, None, event.occurred_at)
    with pytest.raises(Undecodable, match="to be text"):
        renderer(form, "/s", HTTP)(Event.stored(row), "x")


@pytest.mark.parametrize("template", ["{type!r}", "{type:>99}", "{type:{key}}", "{type:{nothing}}", "{type[0]}"])
def test_a_template_has_names_and_nothing_else(template: str) -> None:
    with pytest.raises(ConfigError, match="unknown field"):
        router(template)


def test_a_template_does_not_read_what_it_fills_in() -> None:
    hostile = "{key}{type.__class__}%s{0}"
    assert router("to-{key}")(Event("T", 1, key=hostile)) == f"to-{hostile}"
