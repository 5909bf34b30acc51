"""The relay on real databases: order, failure classes, outages, stopping, looking without touching."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest
from relay_kit import numbered, settings, write
from scripted_sink import ScriptedSink

from relaybox import AsyncRelay, Event, Outbox
from relaybox.contracts import Contracts
from relaybox.errors import BrokerUnavailable, Closed, ConfigError, Reject, RetryLater
from relaybox.facts import CircuitChanged, Delivered, Died, Published, Retried
from relaybox.testing import Probe

FAST = timedelta(milliseconds=1)


async def test_everything_goes_out_in_the_order_of_its_key(url: str, probe: Probe) -> None:
    write(url, numbered(400, 20))
    sink = ScriptedSink(batch=16)
    async with AsyncRelay(url, sink, to="orders", observers=[probe]) as relay:
        await relay.drain()
        status = await relay.status()
    assert (status.due, status.claimed, len(sink.sent)) == (0, 0, 400)
    assert all(numbers == sorted(numbers) for numbers in sink.by_key().values())
    assert {message.destination for message in sink.sent} == {"orders"}
    assert all(len({m.key for m in call}) == len(call) for call in sink.calls), "a key twice in one publish"
    assert probe.count(Published) == probe.count(Delivered) == 400
    assert (sink.opened, sink.closed) == (1, 1)


async def test_a_sink_that_takes_sequences_gets_whole_keys(url: str) -> None:
    write(url, numbered(60, 3))
    sink = ScriptedSink(sequences=True)
    async with AsyncRelay(url, sink, to="x") as relay:
        await relay.drain()
    assert all(numbers == sorted(numbers) for numbers in sink.by_key().values())
    assert len(sink.calls) < 20


async def test_partial_failures_are_retried_alone_and_hold_back_their_key(url: str, probe: Probe) -> None:
    write(url, numbered(30, 3))
    tries: dict[int, int] = {}

    def verdict(message: object) -> BaseException | None:
        number = message.event.payload  # type: ignore[attr-defined]
        tries[number] = tries.get(number, 0) + 1
        return OSError("not now") if number % 7 == 0 and tries[number] < 3 else None

    sink = ScriptedSink(verdict)
    async with AsyncRelay(url, sink, to="x", observers=[probe], settings=settings({"delivery.batch": 10})):
        await probe.wait(Delivered, 30)
    assert all(numbers == sorted(numbers) for numbers in sink.by_key().values())
    assert {number: count for number, count in tries.items() if count > 1} == dict.fromkeys(range(0, 30, 7), 3)


async def test_what_can_never_go_out_dies_with_the_reason_and_its_key_goes_on(url: str, probe: Probe) -> None:
    write(url, numbered(6, 1))
    sink = ScriptedSink(lambda m: Reject("refused by the broker's schema") if m.event.payload == 2 else None)
    async with AsyncRelay(url, sink, to="x", observers=[probe]):
        await probe.wait(Delivered, 5)
    assert sink.by_key() == {"k0": [0, 1, 3, 4, 5]}
    with Outbox(url) as box:
        (letter,) = box.dead.list()
    assert (letter.event.payload, letter.attempts) == (2, 1)
    assert letter.error == "Reject: refused by the broker's schema"


async def test_too_large_a_message_is_rejected_before_it_is_sent(sqlite: str, probe: Probe) -> None:
    write(sqlite, [Event("T", "x" * 200), Event("T", "y")])
    sink = ScriptedSink(max_bytes=100)
    async with AsyncRelay(sqlite, sink, to="x", observers=[probe]):
        await probe.wait(Died)
        await probe.wait(Delivered)
    assert [m.event.payload for call in sink.calls for m in call] == ["y"]


async def test_contracts_decide_and_refuse(sqlite: str, probe: Probe) -> None:
    contracts = Contracts()
    contracts.add("Placed", to="orders", aggregate_type="order")
    write(
        sqlite,
        [
            Event("Placed", {"n": 1}, key="a", aggregate_type="order"),
            Event("Unheard", {"n": 2}, key="a", aggregate_type="order"),
            Event("Placed", None, key="a", aggregate_type="order"),
            Event("Placed", {"n": 4}, key="a", aggregate_type="customer"),
            Event("Placed", {"n": 5}, key="a", aggregate_type="order"),
        ],
    )
    sink = ScriptedSink()
    async with AsyncRelay(sqlite, sink, contracts=contracts, observers=[probe]):
        await probe.wait(Delivered, 2)
        await probe.wait(Died, 3)
    assert [(m.destination, m.event.payload["n"]) for m in sink.sent] == [("orders", 1), ("orders", 5)]
    assert all(fact.attempts == 1 for fact in probe.of(Died))


async def test_an_outage_costs_no_attempt_and_no_event(url: str, probe: Probe) -> None:
    sink = ScriptedSink()
    async with AsyncRelay(
        url, sink, to="x", observers=[probe], settings=settings({"relay.retry.attempts": 1})
    ) as relay:
        sink.away = "connection refused"
        await asyncio.to_thread(write, url, numbered(50, 5))
        relay._input._running.engine.wake()  # type: ignore[union-attr]
        await probe.wait(CircuitChanged)
        assert not relay.health().ready
        assert relay.health().live
        for _ in range(3):
            sink.refused.clear()
            await sink.refused.wait()
        sink.away = None
        await probe.wait(Delivered, 50)
        assert relay.health().ready
    assert probe.of(Retried) == []
    assert probe.of(Died) == []
    assert all(numbers == sorted(numbers) for numbers in sink.by_key().values())
    assert [fact.open for fact in probe.of(CircuitChanged)] == [True, False]


async def test_a_broker_that_is_away_at_the_start_is_waited_for(sqlite: str, probe: Probe) -> None:
    write(sqlite, numbered(5, 5))
    sink = ScriptedSink()
    sink.away = "connection refused"
    async with AsyncRelay(sqlite, sink, to="x", observers=[probe]) as relay:
        assert relay.health().reasons == ("scripted is unavailable",)
        sink.away = None
        await probe.wait(Delivered, 5)
    assert sink.opened == 1


async def test_no_answer_counts_as_an_outage_and_the_same_messages_go_again(sqlite: str, probe: Probe) -> None:
    write(sqlite, numbered(3, 3))
    sink = ScriptedSink()
    sink.gate = asyncio.Event()
    short = settings({"relay.timeout": "50ms"})
    async with AsyncRelay(sqlite, sink, to="x", observers=[probe], settings=short):
        await probe.wait(CircuitChanged)
        sink.gate.set()
        await probe.wait(Delivered, 3)
    assert [m.id for m in sink.calls[0]] == [m.id for m in sink.sent]


async def test_acknowledged_ones_are_settled_while_the_rest_waits(url: str, probe: Probe) -> None:
    write(url, numbered(4, 4))
    away = BrokerUnavailable("half of it is down")
    down = True
    sink = ScriptedSink(lambda m: away if down and m.event.payload % 2 else None)
    async with AsyncRelay(url, sink, to="x", observers=[probe], settings=settings({"delivery.workers": 1})):
        await probe.wait(Delivered, 2)
        assert sorted(m.event.payload for m in sink.sent) == [0, 2]
        down = False
        await probe.wait(Delivered, 4)
    assert len(sink.sent) == 4
    assert probe.of(Retried) == []


async def test_one_destination_that_is_away_stops_no_other(sqlite: str, probe: Probe) -> None:
    write(sqlite, [Event("T", n, key=f"k{n}", tenant="down" if n < 5 else "up") for n in range(10)])
    down = True

    def verdict(message: object) -> BaseException | None:
        there = message.destination  # type: ignore[attr-defined]
        return BrokerUnavailable("refused", destination=there, retry_after=FAST) if down and there == "down" else None

    sink = ScriptedSink(verdict, by_destination=True)
    async with AsyncRelay(
        sqlite, sink, to="{tenant}", observers=[probe], settings=settings({"relay.retry.attempts": 1})
    ) as relay:
        await probe.wait(Delivered, 5)
        await probe.wait(Retried, 5)
        assert relay._circuit is not None
        assert not relay._circuit.is_open
        down = False
        await probe.wait(Delivered, 10)
    assert probe.of(Died) == []


async def test_retry_after_is_obeyed(sqlite: str, probe: Probe) -> None:
    write(sqlite, numbered(1, 1))
    first = True

    def verdict(message: object) -> BaseException | None:
        nonlocal first
        was, first = first, False
        return RetryLater(timedelta(milliseconds=30), "slow down") if was else None

    async with AsyncRelay(sqlite, ScriptedSink(verdict), to="x", observers=[probe]):
        await probe.wait(Delivered)
    (retried,) = probe.of(Retried)
    assert retried.delay == timedelta(milliseconds=30)


async def test_a_stopped_relay_gives_back_what_it_could_not_send(url: str, probe: Probe) -> None:
    write(url, numbered(20, 4))
    sink = ScriptedSink()
    sink.gate = asyncio.Event()
    relay = AsyncRelay(url, sink, to="x", settings=settings({"delivery.stop_timeout": "50ms"}))
    async with relay:
        while not sink.calls:
            await asyncio.sleep(0)
    with Outbox(url) as box:
        status = box.status()
    assert (status.due, status.claimed, status.retrying) == (20, 0, 0)
    with pytest.raises(Closed):
        await relay.__aenter__()


async def test_a_preview_touches_nothing(url: str) -> None:
    write(url, [*numbered(5, 2), Event("Unplaceable", 1)])
    sink = ScriptedSink()
    relay = AsyncRelay(url, sink, to="{key}-events")
    previews = await relay.preview(10)
    assert [(p.event.payload, p.message and p.message.destination) for p in previews[:5]] == [
        (n, f"k{n % 2}-events") for n in range(5)
    ]
    assert previews[5].message is None
    assert "needs the event's key" in str(previews[5].problem)
    with Outbox(url) as box:
        assert (box.status().due, box.status().claimed) == (6, 0)
    assert (sink.calls, sink.opened) == ([], 0)


async def test_wrong_settings_are_refused_before_anything_starts(sqlite: str) -> None:
    sink = ScriptedSink()
    with pytest.raises(ConfigError, match="needs `to`"):
        AsyncRelay(sqlite, sink)
    with pytest.raises(ConfigError, match="unknown field 'colour'"):
        AsyncRelay(sqlite, sink, to="{colour}")
    with pytest.raises(ConfigError, match="expected format to be one of plain, cloudevents"):
        AsyncRelay(sqlite, sink, to="x", format="xml")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="source that is not empty"):
        AsyncRelay(sqlite, sink, to="x", format="cloudevents", ce_source="")
    with pytest.raises(ConfigError, match="in-memory"):
        AsyncRelay("sqlite://", sink, to="x")
    with pytest.raises(ConfigError, match="change data capture"):
        AsyncRelay(Outbox(sqlite, cdc=True), sink, to="x")


async def test_no_payload_and_no_secret_in_the_log(sqlite: str, probe: Probe, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    write(sqlite, [Event("T", "canary-payload", key="k", headers={"token": "canary-header"})])
    sink = ScriptedSink(lambda m: Reject("no") if len(sink.calls) > 3 else OSError("no"))
    async with AsyncRelay(sqlite, sink, to="x", observers=[probe], settings=settings()):
        await probe.wait(Died)
    assert "canary" not in caplog.text
    assert "canary" not in repr(sink.calls)
