"""Payloads that are stored encrypted, written and read by every product."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from kit import QUICK, one, rows, until
from relaybox import (
    AsyncOutbox,
    ConfigError,
    Event,
    Inbox,
    InvalidEvent,
    Keyring,
    Listeners,
    Outbox,
    Relay,
    StartFrom,
    Topic,
)
from relaybox.errors import Undecodable
from relaybox.event import KEY_HEADER, SEALED
from relaybox.relay.inbox_sink import InboxSink
from relaybox.testing.clock import ManualClock
from relaybox.types import Kms

from .kit import MASTER, SECRET, Home, told


@dataclass
class Address:
    n: int
    address: str


def outbox(home: Home, **options: Any) -> Outbox:
    return Outbox(home.url, codec=home.vault(**options), settings=QUICK)


def write(box: Outbox, *events: Event) -> None:
    with box.transaction() as tx:
        box.write_all(tx, events)


def read(box: Outbox) -> list[Any]:
    return [one.event.payload for one in box.events.list()]


def test_nothing_that_is_stored_has_the_plain_text_and_a_listener_has_it(home: Home) -> None:
    seen: list[Any] = []
    with outbox(home) as box:
        write(box, told(1), told(2, headers={"origin": "web"}), Event("Raw", SECRET.encode(), tenant="meier"))
        assert SECRET.encode() not in home.everything()
        with box.deliver(lambda event: seen.append(event.payload)) as service:
            service.drain()
    plain = [{"n": n, "address": SECRET} for n in (1, 2)]
    assert sorted(seen, key=str) == sorted([*plain, SECRET.encode()], key=str)
    assert SECRET.encode() not in home.everything()
    assert len(home.data_keys()) == 1


async def test_asyncio_programs_use_the_same_vault(home: Home) -> None:
    seen: list[Any] = []

    async def listen(event: Event) -> None:
        seen.append(event.payload)

    with home.vault() as writing, home.vault() as reading:
        async with AsyncOutbox(home.url, codec=writing, settings=QUICK) as box:
            async with box.transaction() as tx:
                await box.write(tx, told(1))
                await box.write(tx, told(2, tenant="huber"))
            async with AsyncOutbox(home.url, codec=reading, settings=QUICK) as other:  # which has no key in memory
                async with other.deliver(listen) as service:
                    await service.drain()
            assert {one.event.payload["address"] for one in await box.events.list()} == {SECRET}
    assert {one["n"] for one in seen} == {1, 2}
    assert len(home.data_keys()) == 2


def test_a_new_key_is_there_if_its_event_is(home: Home) -> None:
    with outbox(home) as box:
        with suppress(ZeroDivisionError), box.transaction() as tx:
            box.write(tx, told())
            raise ZeroDivisionError
        assert home.data_keys() == []
        with box.transaction() as tx:
            box.write(tx, told(1))
            box.write(tx, told(2))  # finds the key of this transaction
        assert len(home.data_keys()) == 1
        write(box, told(3))
        assert len(home.data_keys()) == 1
        assert [payload["n"] for payload in read(box)] == [1, 2, 3]


def test_a_key_that_a_savepoint_took_back_is_not_remembered(home: Home) -> None:
    url = home.url.replace("postgresql:", "postgresql+psycopg:").replace("mysql:", "mysql+pymysql:")
    engine = create_engine(url)
    with outbox(home) as box:
        with Session(engine) as session, session.begin():
            nested = session.begin_nested()
            box.write(session, told(1))
            nested.rollback()
        with Session(engine) as session, session.begin():
            box.write(session, told(2))
        assert [payload["n"] for payload in read(box)] == [2]
    engine.dispose()


def test_transactions_that_need_the_same_new_keys_do_not_wait_for_one_another(home: Home) -> None:
    if home.url.startswith("sqlite"):
        pytest.skip("one writer at a time")
    both = threading.Barrier(2, timeout=30)
    with outbox(home) as box:

        def run(first: str, second: str) -> None:
            with box.transaction() as tx:
                box.write(tx, told(1, tenant=first))
                both.wait()
                box.write(tx, told(2, tenant=second))
                both.wait()

        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(run, "a", "b"), pool.submit(run, "b", "a")]:
                done.result()
        assert len(read(box)) == 4


def test_a_remembered_key_costs_no_statement(home: Home) -> None:
    with home.vault() as vault, Outbox(home.url, codec=vault) as box:
        write(box, told(1))
        write(box, told(2))  # looked for once, and remembered
        steps = vault.seal([told(3), told(4)])
        with pytest.raises(StopIteration) as ended:
            next(steps)
        sealed = ended.value.value
        assert [event.content_type for event in sealed] == [SEALED, SEALED]
        assert vault.load(sealed) is None


def test_a_ciphertext_moved_to_another_event_does_not_open(home: Home) -> None:
    with outbox(home) as box:
        write(box, told(1), told(2))
        stolen = "(SELECT payload FROM (SELECT payload FROM outbox_event ORDER BY seq LIMIT 1) AS other)"
        last = one(home.url, "SELECT max(seq) FROM outbox_event")
        rows(home.url, f"UPDATE outbox_event SET payload = {stolen} WHERE seq = {last}")
        first, second = box.events.list()
        assert first.event.payload["n"] == 1
        with pytest.raises(Undecodable, match="is not what data key"):
            _ = second.event.payload
        with box.deliver(lambda event: event.payload) as service:
            service.drain()
        (letter,) = box.dead.list()
        assert letter.event.id == second.event.id
        assert SECRET not in (letter.error or "")


def test_one_with_another_type_does_not_open(sqlite: Home) -> None:
    with outbox(sqlite) as box:
        write(box, told(1))
        rows(sqlite.url, "UPDATE outbox_event SET event_type = 'Refund'")
        with pytest.raises(Undecodable, match="is not what data key"):
            _ = box.events.list()[0].event.payload


def test_without_the_vault_nobody_takes_ciphertext_for_a_payload(sqlite: Home) -> None:
    with outbox(sqlite) as box:
        write(box, told(1))
    with Outbox(sqlite.url) as blind:
        (found,) = blind.events.list()
        with pytest.raises(Undecodable, match="give what reads it the vault"):
            _ = found.event.payload
        assert found.event.body


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("tenant", {"meier", ""}),
        ("key", {"k1", ""}),
        (lambda event: None if event.key is None else f"person-{event.key}", {"person-k1"}),
    ],
)
def test_whose_key_encrypts(sqlite: Home, subject: Any, expected: set[str]) -> None:
    with outbox(sqlite, subject=subject) as box:
        write(box, told(1, key="k1"), told(2, tenant=None))
        assert {key[1] for key in sqlite.data_keys()} == expected
        assert [payload["n"] for payload in read(box)] == [1, 2]
        plain = [one.event for one in box.events.list() if one.event.content_type != SEALED]
        assert len(plain) == 2 - len(expected)


def test_a_function_that_names_nonsense_is_refused_before_anything_is_written(sqlite: Home) -> None:
    with outbox(sqlite, subject=lambda event: 7) as box, pytest.raises(InvalidEvent, match="got int"):
        write(box, told())
    assert sqlite.data_keys() == []


def test_typed_listeners_and_filters_see_the_payload(home: Home) -> None:
    seen: list[Any] = []
    listeners: Listeners[Any] = Listeners()

    @listeners.on("AddressChanged", model=Address, where=lambda event: event.payload["n"] > 1)
    def changed(event: Event[Address]) -> None:
        seen.append(event.payload)

    with outbox(home) as box:
        write(box, told(1), told(2))
        with box.deliver(listeners) as service:
            service.drain()
    assert seen == [Address(2, SECRET)]


def test_a_relay_sends_ciphertext_and_an_inbox_opens_it(home: Home) -> None:
    seen: list[Any] = []
    with home.vault() as vault, Outbox(home.url, codec=vault, settings=QUICK) as box:
        with Inbox(home.url, "orders", codec=vault, settings=QUICK) as inbox:
            inbox.migrate()
            write(box, told(1))
            with Relay(box, InboxSink(home.url), to="orders") as relay:
                relay.drain()
            assert SECRET.encode() not in home.everything()
            with inbox.process(lambda event: seen.append(event.payload)) as service:
                service.drain()
            (kept,) = inbox.events.list()
            assert kept.event.content_type == SEALED
    assert seen == [{"n": 1, "address": SECRET}]


def test_a_relay_that_shall_decrypts(home: Home) -> None:
    with home.vault() as vault, Outbox(home.url, codec=vault, settings=QUICK) as box:
        with Inbox(home.url, "orders", settings=QUICK) as inbox:
            inbox.migrate()
            write(box, told(1, headers={"origin": "web"}))
            with Relay(box, InboxSink(home.url), to="orders", decrypt=True) as relay:
                relay.drain()
            (kept,) = inbox.events.list()
            assert kept.event.payload == {"n": 1, "address": SECRET}
            assert kept.event.headers["origin"] == "web"
            assert KEY_HEADER not in kept.event.headers
    with Outbox(home.url) as box, pytest.raises(ConfigError, match="codec=Vault"):
        Relay(box, InboxSink(home.url), to="orders", decrypt=True)


def test_a_group_and_a_consumer_of_a_topic_read_it(postgres: Home) -> None:
    seen: list[Any] = []
    with postgres.vault() as vault, Outbox(postgres.url, codec=vault, settings=QUICK) as box:
        box.topics.configure(Topic.pub_sub("changes"))
        group = box.topics.group("changes", "mail", start=StartFrom.earliest())
        pulled = box.topics.group("changes", "pull", start=StartFrom.earliest())
        write(box, told(1, topic="changes"))
        assert SECRET.encode() not in postgres.everything()
        with group.deliver(lambda event: seen.append(event.payload)) as service:
            service.drain()
        with pulled.consumer(model=Address) as consumer, consumer.poll(10, wait=20) as batch:
            seen += [event.payload for event in batch]
    assert seen == [{"n": 1, "address": SECRET}, Address(1, SECRET)]


async def test_a_key_service_that_is_away_costs_an_attempt_and_no_event(sqlite: Home) -> None:
    calls: list[str] = []
    away = [True]

    def unwrap(wrapped: bytes, context: Any) -> bytes:
        calls.append(context["subject"])
        if context["subject"] == "meier" and away[0]:
            away[0] = len(calls) < 4
            raise TimeoutError("no answer")
        return wrapped[::-1]

    kms = Keyring({"kms": Kms(lambda secret, context: secret[::-1], unwrap)})
    with outbox(sqlite, keyring=kms) as box:
        write(box, told(1), told(2, tenant="huber"))
    seen: list[int] = []
    with outbox(sqlite, keyring=kms) as box, box.deliver(lambda e: seen.append(e.payload["n"])) as service:
        service.drain()
        assert seen[0] == 2
        await until(lambda: sorted(seen) == [1, 2])


def test_many_subjects_fit_in_a_bounded_memory(sqlite: Home) -> None:
    with sqlite.vault(most=3) as vault, Outbox(sqlite.url, codec=vault, settings=QUICK) as box:
        write(box, *(told(n, tenant=f"t{n}") for n in range(10)))
        assert [payload["n"] for payload in read(box)] == list(range(10))
        assert len(vault._keys) == 3


def test_what_is_remembered_is_looked_at_again_after_its_time(sqlite: Home) -> None:
    clock = ManualClock()
    with sqlite.vault(clock=clock, remember="5m") as vault, Outbox(sqlite.url, codec=vault, clock=clock) as box:
        write(box, told(1))
        assert len(read(box)) == 1
        with sqlite.vault() as other:
            other.destroy("meier")
        assert len(read(box)) == 1
        clock._passed += timedelta(minutes=6)
        with pytest.raises(Undecodable, match="erased"):
            read(box)


def test_a_key_that_is_forgotten_as_soon_as_it_is_read_is_good_for_its_event(sqlite: Home) -> None:
    """As for a process that is stopped just then for longer than it remembers."""
    with sqlite.vault(remember=timedelta(microseconds=1)) as vault, Outbox(sqlite.url, codec=vault) as box:
        write(box, told(1))
        assert [payload["n"] for payload in read(box)] == [1]


def test_keys_and_secrets_are_in_no_repr_and_no_error(sqlite: Home) -> None:
    with sqlite.vault() as vault, Outbox(sqlite.url, codec=vault) as box:
        write(box, told(1))
        shown = f"{vault!r} {vault.settings} {MASTER!r} {vars(vault)} {box.events.list()}"
    assert "1" * 32 not in shown
    assert SECRET not in shown
