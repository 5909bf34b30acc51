"""Old versions become new ones, one upcaster after the other; the rest of the event stays."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from relaybox import ConfigError, Contracts, Event
from relaybox.contracts import VERSION_HEADER, version_of
from relaybox.errors import ContractViolation

CANARY = "canary-7f3a"


@dataclass
class PlacedV1:
    total: int


class PlacedV2(BaseModel):
    total: int
    currency: str


def shop(**options: Any) -> Contracts:
    contracts = Contracts(**options)
    contracts.add("Placed", to="orders", payload=PlacedV1)
    contracts.event("Placed", version=2, to="orders", aggregate_type="Order")(PlacedV2)
    contracts.add("Placed", version=4, to="orders-4", aggregate_type="Order")

    @contracts.upcast("Placed", from_version=1)
    def with_currency(old: PlacedV1) -> dict[str, Any]:
        return {"total": old.total, "currency": "EUR"}

    @contracts.upcast("Placed", from_version=2)
    def as_text(old: PlacedV2) -> dict[str, Any]:
        return {"total": f"{old.total} {old.currency}"}

    return contracts


def stored(body: bytes = b'{"total":7}', headers: str | None = '{"traceparent":"00-a-b-01"}') -> Event:
    now = datetime(2026, 1, 31, tzinfo=UTC)
    return Event.stored((5, "id-1", "Placed", None, "order-7", "acme", None, body, headers, now, now, now))


def test_a_chain_of_upcasters() -> None:
    contracts = shop()
    contracts.verify()
    old = stored()
    new = contracts.upcast_to(old)
    assert new.payload == {"total": "7 EUR"}
    assert dict(new.headers) == {"traceparent": "00-a-b-01", VERSION_HEADER: "4"}
    assert new.aggregate_type == "Order"
    for name in ("id", "type", "key", "tenant", "seq", "occurred_at", "deliver_at", "created_at", "traceparent"):
        assert getattr(new, name) == getattr(old, name)
    assert contracts.upcast_to(old, 2).payload == {"total": 7, "currency": "EUR"}
    assert contracts.upcast_to(old, 1) is old
    assert contracts.upcast_to(new) is new


def test_what_an_inbox_received_keeps_its_sender_and_the_id_of_its_place() -> None:
    now = datetime(2026, 1, 31, tzinfo=UTC)
    row = (5, "at:ORDERS:3", "Placed", None, "order-7", None, None, b'{"total":7}', None, now, None, now)
    new = shop().upcast_to(Event.stored(row, sender="shop"))
    assert (new.id, new.sender, new.payload) == ("at:ORDERS:3", "shop", {"total": "7 EUR"})


def test_reading_gives_the_model_of_the_version() -> None:
    contracts = shop()
    assert contracts.read(stored()) == {"total": "7 EUR"}
    assert contracts.read(stored(), 2) == PlacedV2(total=7, currency="EUR")
    assert contracts.read(stored(), 1) == PlacedV1(7)


def test_what_a_relay_publishes() -> None:
    contracts = shop()
    event, contract = contracts.outgoing(stored())
    assert (event.body, contract.to) == (b'{"total":7}', "orders")
    contracts = shop(publish_as="newest")
    event, contract = contracts.outgoing(stored())
    assert (event.payload, contract.to) == ({"total": "7 EUR"}, "orders-4")
    assert contracts.outgoing(event)[0] is event
    with pytest.raises(ConfigError, match="expected publish_as to be 'stored' or 'newest', got 'latest'"):
        shop(publish_as="latest")


def refusal(contracts: Contracts, event: Event, version: int | None = None) -> ContractViolation:
    with pytest.raises(ContractViolation) as caught:
        contracts.upcast_to(event, version)
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    return caught.value


def test_an_upcaster_that_fails_is_no_reason_to_try_again() -> None:
    contracts = Contracts()
    contracts.add("Placed", to="orders")
    contracts.add("Placed", version=2, to="orders", payload=PlacedV2)

    @contracts.upcast("Placed", from_version=1)
    def broken(old: Any) -> Any:
        if "total" in old:
            return {"total": CANARY}
        raise KeyError(CANARY)

    failed = refusal(contracts, stored(b'{"x":"canary-7f3a"}'))
    assert failed.reason == "upcast"
    assert "its upcaster raised KeyError at test_contracts_versions.py:" in str(failed)
    wrong = refusal(contracts, stored())
    assert wrong.reason == "invalid_payload"
    assert "('Placed' version 2): payload.total: int_type; payload.currency: missing" in str(wrong)


def test_an_upcaster_may_not_return_what_is_no_json() -> None:
    contracts = Contracts()
    contracts.add("Placed", to="orders")
    contracts.add("Placed", version=2, to="orders")
    contracts.upcast("Placed", from_version=1)(lambda old: object())
    assert "raised InvalidEvent" in str(refusal(contracts, stored()))


def test_there_is_no_way_back_and_no_way_to_nowhere() -> None:
    contracts = shop()
    new = contracts.upcast_to(stored())
    assert "there is no way back" in str(refusal(contracts, new, 1))
    assert "there is no version 3 of event type 'Placed'; registered: 1, 2, 4" in str(refusal(contracts, stored(), 3))


def test_a_missing_link() -> None:
    contracts, newest = Contracts(), Contracts(publish_as="newest")
    for version in (1, 2, 3):
        contracts.add("Placed", version=version, to="orders")
        newest.add("Placed", version=version, to="orders")
    contracts.verify()
    with pytest.raises(ConfigError, match=r"no upcaster from version 1 of 'Placed'; .* version 2 of 'Placed'"):
        newest.verify()
    contracts.upcast("Placed", from_version=1)(lambda old: old)
    with pytest.raises(ConfigError, match="there is no upcaster from version 2 of 'Placed'"):
        contracts.verify()
    assert refusal(contracts, stored()).reason == "upcast"


@pytest.mark.parametrize(("name", "version"), [("Placed", 4), ("Placed", 3), ("Nobody", 1)])
def test_an_upcaster_that_leads_nowhere(name: str, version: int) -> None:
    contracts = shop()
    contracts.upcast(name, from_version=version)(lambda old: old)
    with pytest.raises(ConfigError, match=f"the upcaster from version {version} of '{name}' leads nowhere"):
        contracts.verify()


# -- properties ----------------------------------------------------------------------------------------

names = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)
registrations = st.dictionaries(names, st.sets(st.integers(1, 50), min_size=1, max_size=5), min_size=1, max_size=5)
json_values = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def trace(old: list[int]) -> list[int]:
    return [*old, len(old)]


def registry(given: dict[str, set[int]], order: list[tuple[str, int]]) -> Contracts:
    contracts = Contracts(publish_as="newest")
    for name, version in order:
        contracts.add(name, version=version, to=f"{name}/{version}", aggregate_type=name)
        if version < max(given[name]):
            contracts.upcast(name, from_version=version)(trace)
    return contracts


@given(registrations, st.randoms(use_true_random=False), st.data())
def test_resolving_does_not_depend_on_the_order_of_registration(
    registered: dict[str, set[int]], random: Any, data: st.DataObject
) -> None:
    order = [(name, version) for name, versions in registered.items() for version in versions]
    shuffled = random.sample(order, len(order))
    one, other = registry(registered, order), registry(registered, shuffled)
    name, version = data.draw(st.sampled_from(order))
    event = one.make(name, [], key="k", version=version)
    assert one.resolve(event) is one.resolve(event) is one.get(name, version)
    assert one.check(event).to == other.check(event).to == f"{name}/{version}"
    assert [c.name for c in one] == [c.name for c in other]
    assert one.json_schema() == other.json_schema()


@given(registrations, st.data())
def test_every_chain_ends_at_the_newest_version(registered: dict[str, set[int]], data: st.DataObject) -> None:
    order = [(name, version) for name, versions in registered.items() for version in versions]
    contracts = registry(registered, order)
    contracts.verify()
    name, version = data.draw(st.sampled_from(order))
    event = contracts.make(name, [], key="k", version=version)
    new, contract = contracts.outgoing(event)
    assert version_of(new) == contract.version == max(registered[name])
    steps = len([v for v in registered[name] if v >= version]) - 1
    assert contracts.read(event) == new.payload == list(range(steps))
    assert new == event


@given(json_values)
def test_any_json_value_goes_through_unchanged(value: Any) -> None:
    contracts = Contracts()
    contracts.add("A", to="a", key_required=False)
    assert contracts.read(contracts.make("A", value)) == value


@dataclass
class Leaf:
    text: str
    number: int | float
    maybe: bool | None


@dataclass
class Branch:
    leaves: list[Leaf]
    by_name: dict[str, Leaf]
    at: datetime
    below: Branch | None = None


leaf = st.builds(
    Leaf, st.text(), st.integers() | st.floats(allow_nan=False, allow_infinity=False), st.none() | st.booleans()
)
moments = st.datetimes(min_value=datetime(1000, 1, 1), timezones=st.just(UTC))
branches = st.recursive(
    st.builds(Branch, st.lists(leaf), st.dictionaries(st.text(), leaf), moments),
    lambda below: st.builds(Branch, st.lists(leaf), st.dictionaries(st.text(), leaf), moments, below),
    max_leaves=4,
)


@given(branches)
def test_a_valid_model_round_trips(branch: Branch) -> None:
    contracts = Contracts()
    contracts.add("A", to="a", key_required=False, payload=Branch)
    assert contracts.read(contracts.make("A", branch)) == branch


@given(json_values)
def test_a_check_never_fails_in_another_way(value: Any) -> None:
    contracts = Contracts()
    contract = contracts.add("A", to="a", key_required=False, payload=Branch)
    with pytest.raises(ContractViolation, match=r"payload(\.leaves)?: "):  # no such value is a branch
        contract.read(Event("A", value))
