"""The envelope: what it takes, what it refuses, and that nothing can change it afterwards."""

from __future__ import annotations

import dataclasses
import multiprocessing
import pickle
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from time import perf_counter
from typing import Any, ClassVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaybox.codec import JSON_CODEC, headers_from_text, headers_to_text
from relaybox.errors import InvalidEvent, PayloadTooLarge, Undecodable
from relaybox.event import (
    GLOBAL,
    LIMITS,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_PAYLOAD,
    Event,
)
from relaybox.ids import key_hash, new_id, shard_of


class Kind(Enum):
    PLACED = 1


class TextKind(StrEnum):
    PLACED = "order.placed"


# -- fields, defaults, exactly one payload -------------------------------------------------


def test_defaults() -> None:
    before = datetime.now(UTC)
    event = Event("OrderPlaced", {"id": 7})
    assert before <= event.occurred_at <= datetime.now(UTC)
    assert event.occurred_at.tzinfo is UTC
    assert len(event.id) == 26
    assert (event.aggregate_type, event.key, event.tenant, event.deliver_at) == (GLOBAL, None, None, None)
    assert (dict(event.headers), event.headers_text, event.content_type) == ({}, None, "application/json")
    assert (event.body, event.payload, event.payload_json) == (b'{"id":7}', {"id": 7}, '{"id":7}')
    assert (event.seq, event.created_at) == (None, None)


def test_each_way_to_give_a_payload() -> None:
    assert Event("A", None).payload is None
    assert Event("A", payload_json='{"a": 1.10,  "a": 2}').body == b'{"a": 1.10,  "a": 2}'
    assert Event("A", payload_bytes=b"\x00\xff").payload == b"\x00\xff"
    assert Event("A", b"x").content_type == "application/octet-stream"
    assert Event("A", payload_bytes=b"{}", content_type="application/vnd.shop+json; charset=utf-8").payload == {}


@pytest.mark.parametrize(
    "arguments",
    [{}, {"payload": 1, "payload_json": "1"}, {"payload_json": "1", "payload_bytes": b"1"}],
)
def test_none_or_two_payloads_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidEvent, match="exactly one of"):
        Event("A", **arguments)


@pytest.mark.parametrize("arguments", [{"payload_json": b"1"}, {"payload_bytes": "1"}, {"payload_bytes": 5}])
def test_payloads_of_the_wrong_type_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidEvent, match="expected payload_"):
        Event("A", **arguments)


# -- the size limit counts bytes -----------------------------------------------------------------


def test_payload_limit_counts_encoded_bytes() -> None:
    text = "é" * (MAX_PAYLOAD // 2 - 1)  # two quotes and two bytes per letter: exactly the limit
    assert len(Event("A", text).body) == MAX_PAYLOAD
    with pytest.raises(PayloadTooLarge, match=r"1,048,577 bytes.*1,048,576") as refused:
        Event("A", text + "a")
    assert (refused.value.size, refused.value.limit) == (MAX_PAYLOAD + 1, MAX_PAYLOAD)
    assert len(Event("A", payload_bytes=bytes(MAX_PAYLOAD)).body) == MAX_PAYLOAD
    with pytest.raises(PayloadTooLarge):
        Event("A", payload_bytes=bytes(MAX_PAYLOAD + 1))
    with pytest.raises(PayloadTooLarge):
        Event("A", payload_json='"' + "é" * (MAX_PAYLOAD // 2) + '"')


# -- encoded once --------------------------------------------------------------------------------


def test_encoded_once_with_the_given_codec() -> None:
    class Counting:
        encoded = decoded = 0

        def encode(self, value: Any) -> bytes:
            self.encoded += 1
            return JSON_CODEC.encode(value)

        def decode(self, data: bytes) -> Any:
            self.decoded += 1
            return JSON_CODEC.decode(data)

    codec = Counting()
    event = Event("A", {"a": 1}, codec=codec)
    assert (event.body, event.with_headers({"h": "1"}).body) == (b'{"a":1}', b'{"a":1}')
    assert event.payload == event.payload == {"a": 1}
    assert (codec.encoded, codec.decoded) == (1, 2)


# -- immutable, defensive copies, picklable ------------------------------------------------------


def test_nothing_can_be_set_or_deleted() -> None:
    event = Event("A", 1)
    with pytest.raises(AttributeError, match="immutable"):
        event.key = "x"
    with pytest.raises(AttributeError, match="immutable"):
        del event.key
    with pytest.raises(AttributeError):
        event.unknown = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        event.headers["a"] = "b"  # type: ignore[index]


def test_sources_may_change_afterwards() -> None:
    headers, data, payload = {"a": "1"}, bytearray(b"abc"), {"n": [1]}
    event, binary = Event("A", payload, headers=headers), Event("A", payload_bytes=memoryview(data))
    headers["a"] = "2"
    data[0] = 0
    payload["n"].append(2)
    assert (event.headers["a"], event.headers_text, binary.body, event.payload) == (
        "1",
        '{"a":"1"}',
        b"abc",
        {"n": [1]},
    )
    event.payload["n"].append(3)
    assert event.payload == {"n": [1]}


def test_pickle_keeps_everything() -> None:
    event = Event("A", {"n": 1}, key="k", tenant="t", headers={"h": "é"}, aggregate_type="Order", id="mine")
    copy = pickle.loads(pickle.dumps(event))  # noqa: S301 - our own
    fields = (
        "id",
        "type",
        "body",
        "key",
        "tenant",
        "headers",
        "aggregate_type",
        "occurred_at",
        "content_type",
        "payload",
    )
    assert all(getattr(copy, name) == getattr(event, name) for name in fields)
    with pytest.raises(AttributeError, match="immutable"):
        copy.key = "x"


def test_with_headers_is_a_copy_with_more() -> None:
    event = Event("A", 1, headers={"a": "1"})
    more = event.with_headers({"b": "2", "a": "3"})
    assert (dict(event.headers), dict(more.headers)) == ({"a": "1"}, {"a": "3", "b": "2"})
    assert (more.id, more.body, more.headers_text) == (event.id, event.body, '{"a":"3","b":"2"}')
    with pytest.raises(InvalidEvent, match="line break"):
        event.with_headers({"b": "x\ny"})


def test_equality_is_by_id_and_the_repr_shows_no_payload() -> None:
    event = Event("A", {"secret": "hunter2"}, key="k", id="one")
    assert event == Event("B", 2, id="one") != Event("A", 1)
    assert len({event, Event("B", 2, id="one")}) == 1
    assert repr(event) == "Event('A', <20 bytes>, key='k', id='one')"


# -- headers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({None: "x"}, "NoneType to str"),
        ({"a": None}, "str to NoneType"),
        ({"a": 1}, "str to int"),
        ({"": "x"}, "empty"),
        ({"a:b": "x"}, "characters"),
        ({"a\nb": "x"}, "characters"),
        ({"a": "x\r\ny"}, "line break"),
        ({"a": "\x00"}, "NUL"),
        ({"a": "\ud800"}, "surrogate"),
        ([("a", "b")], "mapping, got list"),
        ({f"h{n}": "" for n in range(MAX_HEADERS + 1)}, f"65 headers given, the limit is {MAX_HEADERS}"),
        ({"h": "é" * (MAX_HEADER_BYTES // 2)}, "8,193 bytes"),
    ],
)
def test_bad_headers(headers: Any, message: str) -> None:
    with pytest.raises(InvalidEvent, match=message):
        Event("A", 1, headers=headers)


def test_headers_at_the_limit() -> None:
    assert len(Event("A", 1, headers={f"h{n}": "" for n in range(MAX_HEADERS)}).headers) == MAX_HEADERS
    Event("A", 1, headers={"hh": "é" * (MAX_HEADER_BYTES // 2 - 1)})


def test_header_text() -> None:
    assert headers_to_text({}) is None
    assert [headers_from_text(text) for text in (None, "", "null")] == [{}, {}, {}]
    with pytest.raises(ValueError, match="not a JSON object"):
        headers_from_text("[1]")


@given(st.dictionaries(st.text("abcäß-_.", min_size=1, max_size=9), st.text("xyz é\t\"'\\", max_size=9), max_size=9))
def test_headers_survive_their_text(headers: dict[str, str]) -> None:
    event = Event("A", 1, headers=headers)
    assert headers_from_text(event.headers_text) == headers


def test_unreadable_stored_headers_and_payload_are_undecodable() -> None:
    now = datetime.now(UTC)
    stored = Event.stored((5, "id", "A", None, None, None, None, b"{oops", "[1]", now, None, now))
    assert (stored.seq, stored.aggregate_type, stored.content_type) == (5, GLOBAL, "application/json")
    with pytest.raises(Undecodable, match="headers of event id"):
        stored.headers  # noqa: B018
    with pytest.raises(Undecodable, match="payload of event id"):
        stored.payload  # noqa: B018


# -- ids -------------------------------------------------------------------------------------------


def test_own_ids_are_kept_up_to_36_characters() -> None:
    assert Event("A", 1, id="é" * 36).id == "é" * 36
    with pytest.raises(InvalidEvent, match="id is 37 characters long, the limit is 36"):
        Event("A", 1, id="x" * 37)


def test_ids_increase_across_threads() -> None:
    made: list[list[str]] = [[] for _ in range(8)]
    gate = threading.Barrier(8)

    def make(mine: list[str]) -> None:
        gate.wait()
        mine.extend(new_id() for _ in range(3_000))

    threads = [threading.Thread(target=make, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in made)
    assert len({one for mine in made for one in mine}) == 24_000


def test_ids_increase_when_the_clock_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from relaybox import ids

    times = iter([2_000_000_000_000, 1_000_000_000_000, 1_000_000_000_000])
    monkeypatch.setattr(ids, "epoch_ms", lambda: next(times))
    source = ids._UlidSource()
    made = [source.next() for _ in range(3)]
    assert made == sorted(set(made))
    assert {one[:10] for one in made} == {made[0][:10]}


def _child_ids(pipe: Any) -> None:
    pipe.send([new_id() for _ in range(500)])


def test_ids_differ_after_fork() -> None:
    new_id()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_child_ids, args=(theirs,))
    child.start()
    mine = [new_id() for _ in range(500)]
    theirs = ours.recv()
    child.join(10)
    assert theirs == sorted(theirs)
    assert not set(mine) & set(theirs)


def test_key_hash_is_stable_and_positive() -> None:
    assert key_hash("order-7") == int.from_bytes(bytes.fromhex("cd75315a553ef07e")) & (2**63 - 1)
    assert {shard_of(f"k{n}", 16) for n in range(1_000)} == set(range(16))


# -- types ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_type", "name"),
    [("X", "X"), (Kind.PLACED, "PLACED"), (TextKind.PLACED, "PLACED")],
)
def test_event_types(given_type: Any, name: str) -> None:
    assert Event(given_type, 1).type == name
    assert Event(given_type, payload_json="[1]").payload == [1]
    assert Event("A", 1, aggregate_type=given_type).aggregate_type == name


def test_another_type_is_refused() -> None:
    with pytest.raises(InvalidEvent, match="string or a member of an Enum, got int"):
        Event(5, 1)  # type: ignore[arg-type]


@dataclass
class Placed:
    id: UUID
    total: Decimal
    at: datetime
    on: date


@dataclass
class Renamed:
    event_type: ClassVar[str] = "order.renamed"
    name: str


def test_an_event_of_a_model() -> None:
    model = Placed(UUID(int=7), Decimal("1.50"), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), date(2026, 1, 2))
    event = Event.of(model, key="order-7", correlation_id="c-1")
    assert (event.type, event.key, event.correlation_id) == ("Placed", "order-7", "c-1")
    assert event.payload_json == (
        '{"id":"00000000-0000-0000-0000-000000000007","total":"1.50","at":"2026-01-02T03:04:05+00:00","on":"2026-01-02"}'
    )
    assert Event.of(Renamed("x")).type == "order.renamed"


def test_values_that_are_written_as_text() -> None:
    value = {"at": time(3, 4), "kind": Kind.PLACED, "tags": frozenset({"a"}), "nested": [{"id": UUID(int=1)}]}
    written = {"at": "03:04:00", "kind": Kind.PLACED.value, "tags": ["a"], "nested": [{"id": str(UUID(int=1))}]}
    assert Event("E", value).payload == written


# -- lengths and characters -----------------------------------------------------------------------


CONTROLS = [(f"a{sign}b", "control characters") for sign in ("\n", "\r", "\x1b", "\x7f", "\x9b", "\u2028")]


@pytest.mark.parametrize("field", sorted(LIMITS))
def test_lengths_count_characters(field: str) -> None:
    def make(value: Any) -> Event:
        return Event(value, 1) if field == "type" else Event("A", 1, **{field: value})

    limit = LIMITS[field]
    assert getattr(make("ü" * limit), field) == "ü" * limit
    with pytest.raises(InvalidEvent, match=f"{field} is {limit + 1} characters long"):
        make("ü" * (limit + 1))
    for bad, message in (("", "non-empty"), ("a\x00b", "NUL"), ("a\udfff", "surrogate"), *CONTROLS):
        with pytest.raises(InvalidEvent, match=message):
            make(bad)
    with pytest.raises(InvalidEvent, match="got int"):
        make(5)


def test_times_need_a_zone_and_become_utc() -> None:
    east = timezone(timedelta(hours=2))
    event = Event(
        "A", 1, occurred_at=datetime(2030, 1, 1, 2, tzinfo=east), deliver_at=datetime(2030, 1, 1, 3, tzinfo=east)
    )
    assert event.occurred_at == datetime(2030, 1, 1, tzinfo=UTC)
    assert event.deliver_at is not None
    assert event.deliver_at.utcoffset() == timedelta(0)
    with pytest.raises(InvalidEvent, match="naive"):
        Event("A", 1, occurred_at=datetime(2030, 1, 1))
    with pytest.raises(InvalidEvent, match="datetime, got str"):
        Event("A", 1, deliver_at="tomorrow")  # type: ignore[arg-type]


# -- payload values -------------------------------------------------------------------------------------


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (float("nan"), "JSON"),
        ({"a": float("inf")}, "JSON"),
        ({"a": object()}, "object is not a JSON type"),
        (object(), "object is not a JSON type"),
        ({"a": "\ud800"}, "surrogate"),
        ({(1, 2): 3}, "JSON"),
        (nested(100_000), "nested too deeply"),
    ],
)
def test_values_that_are_not_json(payload: Any, message: str) -> None:
    with pytest.raises(InvalidEvent, match=message):
        Event("A", payload)


def test_a_circle_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(InvalidEvent):
        Event("A", circle)


def test_lone_surrogate_in_json_text_is_refused_and_nul_is_kept() -> None:
    with pytest.raises(InvalidEvent, match="surrogate"):
        Event("A", payload_json='"\ud800"')
    assert Event("A", payload_json='"\x00"').body == b'"\x00"'
    assert Event("A", "\x00").payload == "\x00"


def test_models() -> None:
    @dataclasses.dataclass
    class Order:
        id: int

    class Model:
        def model_dump(self, mode: str, by_alias: bool) -> dict[str, str]:
            return {"mode": mode}

    assert Event("A", {"order": Order(7), "model": Model()}).payload == {"order": {"id": 7}, "model": {"mode": "json"}}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_json_values_come_back(value: Any) -> None:
    assert Event("A", value).payload == value


@given(st.binary(max_size=200))
def test_bytes_come_back(data: bytes) -> None:
    assert Event("A", payload_bytes=data).body == data


def test_traceparent() -> None:
    assert Event("A", 1).traceparent is None
    assert Event("A", 1, headers={"traceparent": "00-x"}).traceparent == "00-x"


def test_times_as_postgresql_sends_them_are_read_when_asked_for() -> None:
    early = datetime(1969, 7, 20, 20, 17, 40, 1, tzinfo=UTC)
    late = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)

    def sent(at: datetime) -> bytes:
        return ((at - datetime(2000, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)).to_bytes(8, signed=True)

    row = (1, "id", "X", None, None, None, None, b"{}", None, sent(early), None, sent(late))
    event = Event.stored(row)
    assert (event.occurred_at, event.created_at, event.occurred_at.tzinfo) == (early, late, UTC)
    for copy in (pickle.loads(pickle.dumps(event)), event.with_headers({"a": "b"})):  # noqa: S301 - our own
        assert (copy.occurred_at, copy.created_at) == (early, late)
    with pytest.raises(AttributeError, match="immutable"):
        event.occurred_at = early  # type: ignore[misc]


def test_a_number_that_readers_refuse_is_no_payload() -> None:
    digits = "7" * 4301
    for text in (digits, f'{{"n": -{digits}}}', f'["\\"", {digits}]', f"1.{digits}"):
        with pytest.raises(InvalidEvent, match="a number of more than 4300 digits"):
            Event("E", payload_json=text)
    assert Event("E", payload_json=f'["{digits}", {digits[1:]}]').payload == [digits, int(digits[1:])]
    assert Event("E", payload_bytes=digits.encode()).body == digits.encode()


@pytest.mark.parametrize("text", ['"' + '\\"' * 500_000, "[" * 501 + '"\\"' * 200_000, "[]" * 500_000, '"\\' * 300_000])
def test_a_payload_is_looked_through_once(text: str) -> None:
    """Half a megabyte takes milliseconds, not hours, whatever is in it."""
    started = perf_counter()
    with suppress(InvalidEvent):
        Event("E", payload_json="[" * 501 + text)
    assert perf_counter() - started < 2


@pytest.mark.parametrize("zone", [-14, 14])
def test_a_time_beyond_the_calendar_is_refused(zone: int) -> None:
    far = (datetime.min if zone > 0 else datetime.max).replace(tzinfo=timezone(timedelta(hours=zone)))
    for field in ("occurred_at", "deliver_at"):
        with pytest.raises(InvalidEvent, match=f"expected {field} to lie in the years 1 to 9999"):
            Event("E", None, **{field: far})
