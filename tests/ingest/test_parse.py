"""Messages become events: what our sinks send comes back as it was, what others send is understood or refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaybox import Event
from relaybox.brokers.formats import renderer
from relaybox.brokers.parse import malformed, parse
from relaybox.errors import InvalidEvent, PayloadTooLarge
from relaybox.event import GLOBAL, MAX_PAYLOAD
from relaybox.ids import new_id
from relaybox.spi import MALFORMED, Features, Incoming
from relaybox.types import Reading

SENT = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
FEATURES = [
    Features(keyed_order=True, dedup=False, attribute_prefix=prefix, percent_encoded=encoded)
    for prefix in ("ce_", "ce-", "cloudEvents:", "cloudEvents_")
    for encoded in (False, True)
]
DEEP = b'{"a":' + b"[" * 100_000
ALWAYS = {"ce-source": "/shop", "ce-id": "1"}
FORMATS: list[Any] = ["plain", "cloudevents", "cloudevents-structured"]


def incoming(
    body: bytes | dict[str, Any] = b"{}", content_type: str | None = "application/json", **given: Any
) -> Incoming:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    base = {"channel": "orders", "place": "orders/0/17", "headers": {}, "sent_at": SENT}
    return Incoming(body=raw, content_type=content_type, **{**base, **given})


def envelope(**given: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "id": "1", "source": "/shop", "type": "OrderPlaced", **given}


def structured(**given: Any) -> Event:
    return parse(incoming(envelope(**given), "application/cloudevents+json"))


text = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=36)
names = st.from_regex(r"x-?[a-zA-Z0-9_.-]{1,20}", fullmatch=True) | st.sampled_from(["sequence", "priority", "trace"])
traces = st.fixed_dictionaries(
    {}, optional={"traceparent": st.just("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), "tracestate": text}
)
bodies = (
    st.builds(
        lambda value, blank: (blank + json.dumps(value) + blank, None), st.none() | text, st.sampled_from(["", " "])
    )
    | st.just(('{"n":1e400,"n": 0.1000,"\\u00e9":' + "9" * 4000 + "}", None))
    | st.tuples(st.binary(max_size=40), st.sampled_from(["application/octet-stream", "text/plain; charset=utf-8"]))
)


@st.composite
def events(draw: Any) -> Event:
    body, content_type = draw(bodies)
    given = {"payload_json": body} if content_type is None else {"payload_bytes": body, "content_type": content_type}
    headers = {name: draw(text) for name in draw(st.lists(names, max_size=3, unique_by=str.lower))}
    return Event(
        draw(text),
        id=draw(text),
        key=draw(st.none() | text),
        aggregate_type=draw(st.just("__GLOBAL__") | text),
        tenant=draw(st.none() | text),
        occurred_at=draw(st.datetimes(timezones=st.just(UTC))),
        headers=headers | draw(traces),
        **given,
    )


@given(event=events(), features=st.sampled_from(FEATURES), form=st.sampled_from(FORMATS), lower=st.booleans())
def test_what_our_sinks_send_comes_back_as_it_was(event: Event, features: Features, form: Any, lower: bool) -> None:
    sent = renderer(form, "/shop", features)(event, "orders")
    headers = {name.lower(): value for name, value in sent.attributes.items()} if lower else sent.attributes
    encoded = features.percent_encoded
    message = incoming(sent.body, sent.content_type, headers=headers, key=sent.key, percent_encoded=encoded)
    back = parse(message)
    expected = {name.lower() if lower else name: value for name, value in event.headers.items()}
    assert (back.type, back.key, back.tenant) == (event.type, event.key, event.tenant)
    assert event.id in (back.id, back.headers.get("ce-id"))
    if form == "plain" or event.aggregate_type != GLOBAL:
        assert back.id == event.id
    assert (back.body, back.content_type, back.occurred_at) == (event.body, event.content_type, event.occurred_at)
    assert (back.aggregate_type, back.traceparent) == (event.aggregate_type, event.traceparent)
    told = {name: value for name, value in back.headers.items() if name not in ("ce-source", "ce-id")}
    if form == "cloudevents-structured":  # extensions have lower case
        assert {n.lower(): v for n, v in told.items()} == {n.lower(): v for n, v in expected.items()}
    else:
        assert told == expected
    assert back.headers.get("ce-source") == (None if form == "plain" else "/shop")


@given(st.binary(max_size=60) | text.map(str.encode), st.sampled_from(["application/cloudevents+json", None]))
def test_any_bytes_are_read_or_refused(body: bytes, content_type: str | None) -> None:
    try:
        assert parse(incoming(body, content_type)).body == body
    except InvalidEvent:
        assert malformed(incoming(body, content_type)).body == body


def test_a_message_of_another_system_is_known_by_its_place() -> None:
    event = parse(incoming(b"\xff", None, key="o-1", headers={"x": "1"}))
    assert (event.id, event.type, event.key, event.body) == ("at:orders/0/17", "orders", "o-1", b"\xff")
    assert (event.occurred_at, dict(event.headers), event.content_type) == (
        SENT,
        {"x": "1"},
        "application/octet-stream",
    )


def test_headers_of_another_system_can_say_what_a_message_is() -> None:
    reading = Reading(
        type="thing", type_header="kind", id_header="Uid", key_header="order_id", content_type="text/plain"
    )
    event = parse(incoming(b"x", None, headers={"Kind": "Placed", "uid": "7", "order-id": "o-1"}), reading)
    assert (event.type, event.id, event.key, event.content_type) == ("Placed", "7", "o-1", "text/plain")
    event = parse(incoming(b"x", None), reading)
    assert (event.type, event.id, event.key) == ("thing", "at:orders/0/17", None)


def test_a_long_place_is_folded_and_stays_the_same() -> None:
    first, again, other = (parse(incoming(place="orders" * 20 + n)).id for n in ("1", "1", "2"))
    assert first == again != other
    assert len(first) == 36


def test_an_id_of_one_source_is_not_that_of_another() -> None:
    """A CloudEvent is identified by its source and id, an inbox knows ids only: a UUID is unique without its source."""
    shop, again, depot = structured(), structured(), structured(source="/depot")
    assert shop.id == again.id != depot.id
    assert shop.headers["ce-id"] == depot.headers["ce-id"] == "1"
    for unique in ("0af76519-16cd-43dd-8448-eb211c80319c", "0AF7651916CD43DD8448EB211C80319C", new_id()):
        assert structured(id=unique).id == structured(id=unique, source="/depot").id == unique
    assert structured(aggregatetype="order").id == "1"


def test_a_long_id_is_folded_and_kept_as_a_header() -> None:
    long, other = "urn:uuid:0af76519-16cd-43dd-8448-eb211c80319c", "urn:uuid:0af76519-16cd-43dd-8448-eb211c80319d"
    for name, read in (
        ("ce-id", lambda id: structured(id=id, aggregatetype="order")),
        ("event-id", lambda id: parse(incoming(headers={"event_id": id, "event_type": "T"}))),
        ("uid", lambda id: parse(incoming(headers={"uid": id}), Reading(id_header="uid"))),
    ):
        assert read(long).id == read(long).id != read(other).id
        assert (len(read(long).id), read(long).headers[name]) == (36, long)


def test_percent_signs_of_another_system_are_not_decoded() -> None:
    assert parse(incoming(headers={"rate": "100%25"}, percent_encoded=True)).headers["rate"] == "100%25"


def test_structured_data_in_all_its_forms() -> None:
    assert structured(data={"n": [1]}).payload == {"n": [1]}
    assert structured(data="<a/>", datacontenttype="text/xml").body == b"<a/>"
    assert structured(data={"n": 1}, datacontenttype="text/xml").body.strip() == b'{"n": 1}'
    assert structured(data_base64="/w==", datacontenttype="image/png").body == b"\xff"
    assert structured().payload is None
    assert structured(datacontenttype="text/plain").body == b""
    assert structured(subject="o-1").key == "o-1"
    assert structured(subject="a", partitionkey="b").headers == {**ALWAYS, "ce-subject": "a"}
    assert structured(ratio=3, flag=True, none=None).headers == {**ALWAYS, "ratio": "3", "flag": "true"}
    assert structured(time="2026-01-02t03:04:05z").occurred_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"specversion": "0.3"}, "specversion"),
        ({"id": None}, "'id'"),
        ({"source": ""}, "'source'"),
        ({"id": "\ud800"}, "surrogate"),
        ({"id": "\ud800", "aggregatetype": "order"}, "surrogate"),
        ({"time": "yesterday"}, "time"),
        ({"time": "2026-01-02T03:04:05"}, "time zone"),
        ({"data": 1, "data_base64": "AA=="}, "both"),
        ({"data_base64": "?"}, "base64"),
        ({"data_base64": 7}, "base64"),
        ({"extension": {}}, "extension"),
        ({"data": "\ud800", "datacontenttype": "text/plain"}, "surrogate"),
        ({"extension": "\ud800"}, "surrogate"),
    ],
)
def test_a_bad_cloudevent_is_refused_with_the_reason(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidEvent, match=reason):
        structured(**given)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b'{"a"}', b'{"a":1,}', b'{"a":1}x', b"{1:2}", b'{"a":1,"a":2}', b"\xff", b'{"a":NaN}', DEEP],
)
def test_what_is_no_json_object_is_no_structured_cloudevent(body: bytes) -> None:
    with pytest.raises(InvalidEvent, match="JSON object"):
        parse(incoming(body, "application/cloudevents+json"))


def test_other_cloudevents_formats_are_refused() -> None:
    with pytest.raises(InvalidEvent, match="cloudevents-batch"):
        parse(incoming(b"[]", "application/cloudevents-batch+json"))


@pytest.mark.parametrize("headers", [{"event_id": "\0"}, {"event_id": ""}, {"created_at": "noon"}, {"x:y": "1"}])
def test_a_bad_plain_message_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidEvent):
        parse(incoming(headers={"event_id": "1", "event_type": "T", **headers}))


def test_what_cannot_be_read_keeps_its_bytes_and_the_headers_that_can_be_stored() -> None:
    body = b"\0" * (MAX_PAYLOAD + 1)
    message = incoming(body, "application/cloudevents+json", headers={"a": "1", "b": "\0", "c": "\r", "d": "4"})
    event = malformed(message)
    assert (event.id, event.type, event.body) == ("at:orders/0/17", MALFORMED, body)
    assert (event.key, dict(event.headers), event.occurred_at) == (None, {"a": "1", "d": "4"}, SENT)
    with pytest.raises(PayloadTooLarge):
        parse(incoming(body))
