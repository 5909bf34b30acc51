"""The registry: what it takes and resolves, and a failing case for each way to break a contract."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

import pytest

from relaybox import ConfigError, Contracts, Event, InvalidEvent
from relaybox.contracts import VERSION_HEADER, version_of
from relaybox.engine.decide import decide
from relaybox.errors import ContractViolation, Reject
from relaybox.outcome import Dead
from relaybox.retry import Retry

SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


class Kind(Enum):
    PLACED = 1


@pytest.fixture
def contracts() -> Contracts:
    made = Contracts()
    made.add("OrderPlaced", to="orders", aggregate_type="Order", payload=SCHEMA)
    made.add("OrderPlaced", version=2, to="orders-2", aggregate_type="Order", payload=SCHEMA)
    made.add("Printed", to="print", content_type="application/pdf", key_required=False)
    made.add("Anything", to="rest", key_required=False)
    made.add("Unread", to="rest", key_required=False, payload=SCHEMA, check_payload=False)
    return made


def order(payload: Any = None, **options: Any) -> Event:
    options = {"key": "order-7", "aggregate_type": "Order", **options}
    if "payload_json" in options or "payload_bytes" in options:
        return Event("OrderPlaced", **options)
    return Event("OrderPlaced", {"id": 7} if payload is None else payload, **options)


# -- resolving -----------------------------------------------------------------------------------------


def test_a_type_and_version_have_one_destination(contracts: Contracts) -> None:
    assert contracts.resolve(order()).to == "orders"
    assert contracts.resolve(order(headers={VERSION_HEADER: "1"})).to == "orders"
    assert contracts.check(order(headers={VERSION_HEADER: "2"})).to == "orders-2"
    assert contracts.get("OrderPlaced").version == 2
    assert contracts.get("OrderPlaced", 1).version == 1
    assert [contract.name for contract in contracts][:3] == ["Anything.v1", "OrderPlaced.v1", "OrderPlaced.v2"]
    assert len(contracts) == 5


def test_types_may_be_enum_members() -> None:
    contracts = Contracts()
    contracts.add(Kind.PLACED, to="orders", key_required=False)
    assert contracts.check(Event(Kind.PLACED, 1)).type == "PLACED"
    assert contracts.make(Kind.PLACED, 1).type == "PLACED"


def test_the_version_travels_in_a_header() -> None:
    assert version_of(Event("A", 1)) == 1
    assert version_of(Event("A", 1, headers={VERSION_HEADER: "12"})) == 12


# -- breaking a contract -------------------------------------------------------------------------------

BROKEN: list[tuple[str, Event, str]] = [
    ("unknown_type", Event("Nobody", {"id": 7}, key="k"), "no contract for its type 'Nobody'"),
    ("unknown_version", order(headers={VERSION_HEADER: "3"}), "is of version 3; registered: 1, 2"),
    ("unknown_version", order(headers={VERSION_HEADER: "two"}), "not a whole number from 1"),
    ("unknown_version", order(headers={VERSION_HEADER: "0"}), "not a whole number"),
    ("unknown_version", order(headers={VERSION_HEADER: "9" * 5000}), "not a whole number"),
    ("null_payload", order(payload_json="null"), "the payload is null"),
    ("null_payload", order(payload_json=" null\n"), "the payload is null"),
    ("undecodable", order(payload_json="{"), "the payload is not JSON"),
    ("undecodable", order(payload_bytes=b"\xff\xfe", content_type="application/json"), "the payload is not JSON"),
    ("undecodable", order(payload_json='{"id": NaN}'), "the payload is not JSON"),
    ("invalid_payload", order({"id": "x"}), 'payload.id: type "integer"'),
    ("invalid_payload", order({}), 'payload: required ["id"]'),
    ("no_key", order(key=None), "no key"),
    ("aggregate_type", order(aggregate_type="Invoice"), "expected aggregate type 'Order', got 'Invoice'"),
    ("aggregate_type", Event("OrderPlaced", {"id": 7}, key="k"), "got '__GLOBAL__'"),
    ("content_type", order(content_type="text/plain"), "expected content type 'application/json', got 'text/plain'"),
    ("content_type", order(b"%PDF"), "got 'application/octet-stream'"),
]


@pytest.mark.parametrize(("reason", "event", "text"), BROKEN, ids=[f"{b[0]}-{n}" for n, b in enumerate(BROKEN)])
def test_each_way_to_break_it_has_its_own_error(contracts: Contracts, reason: str, event: Event, text: str) -> None:
    with pytest.raises(ContractViolation) as caught:
        contracts.check(event)
    error = caught.value
    assert error.reason == reason
    assert text in str(error)
    assert event.id in str(error)
    assert len(str(error)) < 300
    assert isinstance(error, Reject)
    assert isinstance(error, InvalidEvent)


@pytest.mark.parametrize(("reason", "event", "text"), BROKEN, ids=[f"{b[0]}-{n}" for n, b in enumerate(BROKEN)])
def test_none_is_retried(contracts: Contracts, reason: str, event: Event, text: str) -> None:
    """A dead letter with the reason at the first attempt, also where ordered delivery retries for ever."""
    with pytest.raises(ContractViolation) as caught:
        contracts.outgoing(event)
    outcome = decide(caught.value, 1, Retry(attempts=25), for_ever=True)
    assert outcome == Dead(f"ContractViolation: {caught.value}")


def test_a_content_type_may_have_parameters(contracts: Contracts) -> None:
    contracts.check(order(content_type="Application/JSON; charset=utf-8"))


def test_other_content_types_are_bytes(contracts: Contracts) -> None:
    event = contracts.make("Printed", b"%PDF-1.7")
    assert (event.content_type, event.payload) == ("application/pdf", b"%PDF-1.7")
    assert contracts.read(event) == b"%PDF-1.7"
    contracts.check(Event("Printed", payload_bytes=b"null", content_type="application/pdf"))
    with pytest.raises(InvalidEvent, match="expected a payload of application/pdf to be bytes, got dict"):
        contracts.make("Printed", {"id": 7})


def test_without_a_model_any_json_but_null() -> None:
    contracts = Contracts()
    contracts.add("A", to="a", key_required=False)
    for value in ({}, [], 0, "", False):
        contracts.check(Event("A", value))
    for text in ("null", "", "nul", "{} {}", "\ufeff{}"):
        with pytest.raises(ContractViolation):
            contracts.check(Event("A", payload_json=text))


def test_a_payload_that_is_not_checked_is_still_not_null(contracts: Contracts) -> None:
    contracts.check(Event("Unread", payload_json='{"id": "wrong"'))
    with pytest.raises(ContractViolation, match="null"):
        contracts.check(Event("Unread", None))


def test_the_error_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(ContractViolation("why", "no_key")))  # noqa: S301 - our own bytes
    assert (str(error), error.reason) == ("why", "no_key")


# -- making --------------------------------------------------------------------------------------------


def test_make_fills_in_what_the_contract_knows(contracts: Contracts) -> None:
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    event = contracts.make("OrderPlaced", {"id": 7}, key="order-7", headers={"h": "v"}, tenant="t", deliver_at=moment)
    assert dict(event.headers) == {"h": "v", VERSION_HEADER: "2"}
    assert (event.aggregate_type, event.content_type, event.key) == ("Order", "application/json", "order-7")
    assert (event.tenant, event.deliver_at) == ("t", moment)
    assert contracts.make("OrderPlaced", {"id": 7}, key="k", version=1).headers[VERSION_HEADER] == "1"


def test_make_refuses_what_write_would(contracts: Contracts) -> None:
    with pytest.raises(ContractViolation, match="no key"):
        contracts.make("OrderPlaced", {"id": 7})
    with pytest.raises(ContractViolation, match=r"payload\.id"):
        contracts.make("OrderPlaced", {"id": "x"}, key="k")
    with pytest.raises(ContractViolation, match="no contract for event type 'Nobody'"):
        contracts.make("Nobody", {})
    with pytest.raises(ContractViolation, match="no version 9 of event type 'OrderPlaced'; registered: 1, 2"):
        contracts.make("OrderPlaced", {"id": 7}, version=9)
    with pytest.raises(ConfigError, match="give version= instead"):
        contracts.make("OrderPlaced", {"id": 7}, key="k", headers={VERSION_HEADER: "1"})


# -- registering ---------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"type": ""}, "non-empty"),
    ({"type": "x" * 129}, "limit is 128"),
    ({"type": 7}, "got int"),
    ({"aggregate_type": ""}, "aggregate_type"),
    ({"content_type": "x\x00"}, "NUL"),
    ({"to": ""}, "destination"),
    ({"to": 7}, "destination"),
    ({"version": 0}, "whole number from 1, got 0"),
    ({"version": "1"}, "got '1'"),
    ({"version": True}, "got True"),
    ({"payload": dict}, "expected payload to be a dataclass.*got dict"),
    ({"payload": 7}, "got int"),
    ({"payload": SCHEMA, "content_type": "text/plain"}, "describes JSON"),
    ({"payload": {"type": "nonsense"}}, "not a JSON Schema"),
    ({"payload": {"$ref": "http://elsewhere/x.json"}}, "only references inside"),
    ({"payload": {"$ref": "#/$defs/none"}}, "which is not in it"),
]


@pytest.mark.parametrize(("given", "text"), WRONG, ids=[str(w[0])[:40] for w in WRONG])
def test_what_cannot_be_registered(given: dict[str, Any], text: str) -> None:
    contracts = Contracts()
    with pytest.raises(ConfigError, match=text):
        contracts.add(**{"type": "A", "to": "a", **given})
    assert len(contracts) == 0
    assert list(contracts) == []


def test_nothing_is_registered_twice(contracts: Contracts) -> None:
    with pytest.raises(ConfigError, match="version 2 of 'OrderPlaced' is registered already"):
        contracts.add("OrderPlaced", version=2, to="elsewhere")
    contracts.upcast("OrderPlaced", from_version=1)(lambda old: old)
    with pytest.raises(ConfigError, match="upcaster from version 1 of 'OrderPlaced' already"):
        contracts.upcast("OrderPlaced", from_version=1)(lambda old: old)


def test_an_empty_registry_is_no_registry() -> None:
    with pytest.raises(ConfigError, match="no contract is registered"):
        Contracts().verify()


def test_stored_events_are_checked_alike(contracts: Contracts) -> None:
    """As a relay reads them: a row, headers still text."""
    now = datetime(2026, 1, 31, tzinfo=UTC)
    row = (1, "id-1", "OrderPlaced", "Order", "k", None, None, b'{"id":7}', '{"event-version":"2"}', now, None, now)
    assert contracts.check(Event.stored(row)).version == 2
    assert contracts.outgoing(Event.stored(row))[1].to == "orders-2"
    assert now + timedelta(0) == Event.stored(row).created_at
