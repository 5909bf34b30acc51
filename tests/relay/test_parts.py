"""Circuit, pauses, routes and formats, each alone."""

from __future__ import annotations

import base64
import itertools
import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaybox import Event
from relaybox.brokers.formats import CLOUDEVENTS_JSON, renderer, timestamp
from relaybox.errors import BrokerUnavailable, ConfigError, Reject, Undecodable
from relaybox.event import Y2K
from relaybox.facts import CircuitChanged, Observers
from relaybox.relay.circuit import LONGEST_PAUSE, Circuit
from relaybox.relay.pauses import LASTS, LONGEST, SOON, TRIAL, Pauses
from relaybox.relay.routing import router
from relaybox.spi import Features
from relaybox.testing import ManualClock, Probe

PLAIN = Features(keyed_order=True, dedup=False)
HTTP = Features(keyed_order=True, dedup=False, attribute_prefix="ce-", percent_encoded=True)
AT = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


async def test_probes_are_never_further_apart_than_a_second() -> None:
    clock, probe = ManualClock(), Probe()
    answers: list[float] = []
    back_after = 12

    async def ask() -> None:
        answers.append(clock.monotonic())
        if len(answers) < back_after:
            raise BrokerUnavailable("still away")

    circuit = Circuit("kafka", ask, Observers([probe]), clock)
    circuit.trip(BrokerUnavailable("refused"))
    circuit.trip(BrokerUnavailable("refused"))
    assert circuit.is_open
    while circuit.is_open:
        await clock.wait_for_sleepers()
        clock.advance(0.01)
        await clock.sleep(0)
        await clock.sleep(0)
    await circuit.passage()
    gaps = [later - earlier for earlier, later in itertools.pairwise(answers)]
    assert max(gaps) <= LONGEST_PAUSE + 0.02
    assert [fact.open for fact in probe.of(CircuitChanged)] == [True, False]
    await circuit.stop()


async def test_the_time_a_broker_asks_for_is_given() -> None:
    clock = ManualClock()
    asked: list[float] = []

    async def ask() -> None:
        asked.append(clock.monotonic())

    circuit = Circuit("kafka", ask, Observers(), clock)
    circuit.trip(BrokerUnavailable("quota", retry_after=timedelta(seconds=30)))
    while circuit.is_open:
        await clock.wait_for_sleepers()
        clock.advance(1)
        await clock.sleep(0)
        await clock.sleep(0)
    assert asked[0] >= 30


def test_one_message_tries_a_destination_after_its_pause() -> None:
    clock = ManualClock()
    pauses = Pauses(clock)
    assert pauses.admit("a") is None
    pauses.failed("a", BrokerUnavailable("refused", destination="a"))
    resting = pauses.admit("a")
    assert resting is not None
    assert resting.retry_after is not None
    clock.advance(1.0)
    assert pauses.admit("a") is None
    others = pauses.admit("a")
    assert others is not None, "only one tries"
    assert others.retry_after is not None
    assert others.retry_after < timedelta(seconds=2), "the others look again soon"
    clock.advance(TRIAL)
    assert pauses.admit("a") is None, "the trial never came back: the next one tries"
    pauses.succeeded("a")
    assert (pauses.admit("a"), len(pauses)) == (None, 0)


def test_pauses_grow_to_a_minute_and_absurd_wishes_are_clamped() -> None:
    clock = ManualClock()
    pauses = Pauses(clock)
    waits = []
    for _ in range(20):
        together = [pauses.failed("a", BrokerUnavailable("x", destination="a")).retry_after for _ in range(50)]
        waits.append(max(filter(None, together)))
        clock.advance(waits[-1])
    assert waits[0] <= timedelta(seconds=1.25), "fifty that fail together are one failure"
    assert max(waits) <= timedelta(seconds=SOON + 0.4), "an outage that ends soon is noticed soon"
    clock.advance(LASTS)
    wait = pauses.failed("a", BrokerUnavailable("x", destination="a")).retry_after
    assert wait is not None
    assert timedelta(seconds=29) < wait <= timedelta(seconds=LONGEST + 0.4), "one that lasts is asked about rarely"
    clock.advance(wait)
    wait = pauses.failed("a", BrokerUnavailable("x", destination="a", retry_after=timedelta(days=9999))).retry_after
    assert wait is not None
    assert wait <= timedelta(hours=1, seconds=0.4)


def test_many_that_rest_come_back_spread_out() -> None:
    pauses = Pauses(ManualClock())
    waits = [pauses.failed("a", BrokerUnavailable("x", destination="a")).retry_after for _ in range(4000)]
    assert max(filter(None, waits)) > timedelta(seconds=5)


def test_routes() -> None:
    event = Event("Placed", 1, key="k", aggregate_type="order", tenant="acme")
    assert router("orders")(event) == "orders"
    assert router("{aggregate_type}.{type}.{tenant}.{key}")(event) == "order.Placed.acme.k"
    assert router("a{{b}}")(event) == "a{b}"
    assert router(lambda e: e.type.lower())(event) == "placed"
    with pytest.raises(Reject, match="tenant"):
        router("{tenant}")(Event("T", 1))
    for bad in ("", "{", "{type.upper}", "{0}", "{}"):
        with pytest.raises(ConfigError):
            router(bad)


@pytest.mark.parametrize(
    ("template", "destination"),
    [
        ("x.{key}", "/x.a/b"),
        ("{type}", "T"),
        ("x/{key}", "x/a/b"),
        ("/{key}", "/a/b"),
        ("{type}/{key}", "T/a/b"),
        ("{type}/{type}", "T/T"),
        ("{{{type}/{key}", "{T/a/b"),
        ("x/y", "x/y"),
    ],
)
def test_an_event_does_not_choose_its_exchange(template: str, destination: str) -> None:
    """Where a slash splits destinations, one in a field of the event must not."""
    assert router(template, "/")(Event("T", 1, key="a/b")) == destination


def test_a_slash_before_the_one_that_splits_is_refused() -> None:
    with pytest.raises(Reject, match="before the one that splits"):
        router("{key}/{type}", "/")(Event("T", 1, key="a/b"))


def test_plain_carries_the_five_attributes_and_the_headers() -> None:
    event = Event("Placed", {"n": 1}, key="k", occurred_at=AT, headers={"traceparent": "00-aa", "event_id": "forged"})
    message = renderer("plain", "", PLAIN)(event, "orders")
    assert message.body == b'{"n":1}'
    assert message.attributes == {
        "traceparent": "00-aa",
        "event_id": event.id,
        "event_type": "Placed",
        "aggregate_type": "__GLOBAL__",
        "aggregate_id": "k",
        "created_at": "2030-01-02T03:04:05.678901Z",
    }


@given(
    st.lists(
        st.datetimes(datetime(2, 1, 1), timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))])),
        max_size=5,
    ),
    st.lists(st.integers(0, 3_000_000)),
)
def test_times_are_written_as_isoformat_does(moments: list[datetime], apart: list[int]) -> None:
    """Also as a claim brings them, and neighbours, of the same second or not: what they share is not written anew."""
    first = datetime(2026, 2, 28, 23, 59, 58, 500_000, tzinfo=UTC)
    for moment in [*moments, *(first + timedelta(microseconds=later) for later in apart)]:
        written = moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
        assert timestamp(moment) == written
        assert timestamp(((moment - Y2K) // timedelta(microseconds=1)).to_bytes(8, signed=True)) == written


def test_cloudevents_binary() -> None:
    event = Event("Plaç ed", b"\x00\xff", key='k "1"', occurred_at=AT, headers={"traceparent": "00-aa", "X": "y"})
    message = renderer("cloudevents", "/shop", HTTP)(event, "orders")
    assert message.body == b"\x00\xff"
    assert message.content_type == "application/octet-stream"
    assert message.attributes == {
        "traceparent": "00-aa",
        "X": "y",
        "ce-specversion": "1.0",
        "ce-id": event.id,
        "ce-source": "/shop",
        "ce-type": "Pla%C3%A7%20ed",
        "ce-time": "2030-01-02T03:04:05.678901Z",
        "ce-subject": "k%20%221%22",
        "ce-partitionkey": "k%20%221%22",
        "ce-traceparent": "00-aa",
    }


def test_cloudevents_structured_keeps_the_bytes_of_the_payload() -> None:
    event = Event("T", payload_json='{"n": 1.10}', key="k", occurred_at=AT, headers={"color": "red", "X-Y": "z"})
    message = renderer("cloudevents-structured", "/shop", PLAIN)(event, "orders")
    assert message.content_type == CLOUDEVENTS_JSON
    assert message.body.endswith(b',"data":{"n": 1.10}}')
    envelope = json.loads(message.body)
    assert (envelope["color"], envelope["subject"], envelope["datacontenttype"]) == ("red", "k", "application/json")
    assert message.attributes == {"X-Y": "z"}
    binary = renderer("cloudevents-structured", "/shop", PLAIN)(Event("T", b"\xff"), "orders")
    assert base64.b64decode(json.loads(binary.body)["data_base64"]) == b"\xff"
    with pytest.raises(Undecodable):
        renderer("cloudevents-structured", "/shop", PLAIN)(Event("T", payload_json="{not json"), "orders")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=4)))
def test_a_structured_envelope_can_always_be_read_again(value: object) -> None:
    event = Event("T", {"v": value}, key="k")
    envelope = json.loads(renderer("cloudevents-structured", "/s", PLAIN)(event, "x").body)
    assert envelope["data"] == event.payload
    assert {"specversion", "id", "source", "type"} <= envelope.keys()
