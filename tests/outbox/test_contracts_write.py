"""Contracts in the way of a message: refused before any SQL at the write, a dead letter with the reason at delivery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from kit import Box, Probe, happened, make_box, one, rows, stored
from relaybox import ConfigError, Contracts, Event, Listeners, Outbox
from relaybox.errors import ContractViolation
from relaybox.facts import Died
from relaybox.spi import WriterHook

CANARY = "canary-7f3a"


@dataclass
class Happened:
    n: int


def contracts() -> Contracts:
    made = Contracts()
    made.add("Happened", to="happenings", payload=Happened, key_required=False)
    made.add("Keyed", to="happenings", aggregate_type="Thing")
    return made


BAD = {
    "unknown_type": Event("Nobody", {"n": 1}),
    "unknown_version": happened(1, headers={"event-version": "2"}),
    "null_payload": Event("Happened", None),
    "undecodable": Event("Happened", payload_json="{"),
    "invalid_payload": Event("Happened", {"n": CANARY}),
    "no_key": Event("Keyed", {}, aggregate_type="Thing"),
    "aggregate_type": Event("Keyed", {}, key="k"),
    "content_type": Event("Happened", b"1"),
}


def test_what_breaks_its_contract_is_refused_and_the_transaction_goes_on(url: str) -> None:
    box = Outbox(url, contracts=contracts())
    with box.transaction() as tx:
        tx.connection.cursor().execute("INSERT INTO business VALUES (1)")
        for reason, bad in BAD.items():
            with pytest.raises(ContractViolation) as caught:
                box.write_all(tx, [happened(1), bad, happened(2)])
            assert caught.value.reason == reason
            assert bad.id in str(caught.value)
            assert CANARY not in str(caught.value)
        tx.connection.cursor().execute("INSERT INTO business VALUES (2)")
        box.write(tx, happened(3))
    box.close()
    assert stored(url) == 1
    assert one(url, "SELECT count(*) FROM business") == 2


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kind", ["plain", "alone", "delivery", "ordered", "cdc"])
async def test_every_way_checks(tmp_path: Any, probe: Probe, kind: str, is_async: bool) -> None:
    url = f"sqlite:///{tmp_path}/flow.db"
    async with make_box(kind, url, probe, is_async=is_async, contracts=contracts(), migrate=True) as box:
        await refused(box, Event("Nobody", 1))
        await write(box, contracts().make("Happened", Happened(1)))
    assert rows(url, "SELECT event_type, headers FROM outbox_event") == [("Happened", '{"event-version":"1"}')]


async def refused(box: Box, event: Event) -> None:
    with pytest.raises(ContractViolation, match="Nobody"):
        await write(box, event)


async def write(box: Box, event: Event) -> None:
    if box.is_async:
        async with box.raw.transaction() as tx:
            await box.raw.write(tx, event)
    else:
        with box.raw.transaction() as tx:
            box.raw.write(tx, event)


def test_what_a_hook_made_of_an_event_is_checked(tmp_path: Any) -> None:
    class Wrong(WriterHook):
        def before_write(self, events: Any) -> Any:
            return [event.with_headers({"event-version": "9"}) for event in events]

    box = Outbox(f"sqlite:///{tmp_path}/flow.db", contracts=contracts(), hooks=[Wrong()])
    box.migrate()
    with box.transaction() as tx, pytest.raises(ContractViolation, match="version 9"):
        box.write(tx, happened(1))
    box.close()


def test_contracts_must_be_contracts(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="expected contracts to be a Contracts registry, got dict"):
        Outbox(f"sqlite:///{tmp_path}/flow.db", contracts={})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["delivery", "ordered"])
async def test_before_delivery_it_is_a_dead_letter_with_the_reason_and_the_rest_goes_on(
    url: str, probe: Probe, kind: str
) -> None:
    """As a relay does it, for events that nobody checked when they were written."""
    registry = contracts()
    listeners = Listeners()

    async def publish(event: Event, delivery: Any) -> None:
        registry.outgoing(event)
        probe.deliver(event, delivery)

    for name in ("Happened", "Nobody"):
        listeners.on(name)(publish)
    bad = {
        "null_payload": Event("Happened", None, key="k"),
        "unknown_type": Event("Nobody", {}, key="k"),
        "invalid_payload": Event("Happened", {"n": CANARY}, key="k"),
    }
    good = [happened(n, key="k") for n in range(3)]
    async with make_box(kind, url, probe, listeners=listeners) as box:
        async with box.raw.transaction() as tx:
            await box.raw.write_all(tx, [good[0], *bad.values(), *good[1:]])
        await probe.until(lambda: len(probe.seen) == 3 and len(probe.of(Died)) == 3)
        letters = {letter.event.id: letter for letter in await box.raw.dead.list()}
    assert {seen.event.id for seen in probe.seen} == {event.id for event in good}
    assert set(letters) == {event.id for event in bad.values()}
    assert all(letter.attempts == 1 for letter in letters.values())
    said = {reason: letters[event.id].error or "" for reason, event in bad.items()}
    assert said["null_payload"].endswith("('Happened' version 1): the payload is null")
    assert "no contract for its type 'Nobody'" in said["unknown_type"]
    assert said["invalid_payload"].endswith("payload.n: expected integer, got string")
    assert all(text.startswith("ContractViolation: event ") and CANARY not in text for text in said.values())
