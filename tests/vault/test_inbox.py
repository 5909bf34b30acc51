"""Inboxes that store what they accept encrypted: payload and headers, on every engine."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Command
from inbox.kit import aprocessed, processed
from ingest.scripted_source import ScriptedSource
from kit import QUICK, make_database, one, rows, until
from relaybox import (
    ALL,
    AsyncInbox,
    AsyncOutbox,
    ConfigError,
    Event,
    Inbox,
    InvalidEvent,
    Keyring,
    Listeners,
    Outbox,
    Vault,
    erase,
)
from relaybox.errors import SchemaMissing, Undecodable
from relaybox.event import KEY_HEADER, MAX_PAYLOAD, SEALED_MESSAGE
from relaybox.spi import Incoming
from relaybox.types import Kms, Order, TieredInbox
from relaybox.vault.keyring import new_master_key

from .kit import MASTER, SECRET, Home, told
from .messages import ONCE, PLAIN, Address, fail, inbox_of, ingesting, look, payload, sent

# -- nothing is stored in clear text --------------------------------------------------------------------------


@pytest.mark.parametrize("order", [None, Order(start=1)], ids=["plain", "ordered"])
def test_nothing_that_is_stored_has_the_plain_text_and_a_handler_has_it(home: Home, order: Order | None) -> None:
    seen: list[Any] = []
    with home.vault() as vault, inbox_of(home, vault) as inbox:
        inbox.configure(order=order)
        assert inbox.accept(None, sent(1, key="a", sequence=1), sender="shop")
        more = [sent(2, key="a", sequence=2), Event("Raw", PLAIN, tenant="meier"), sent(4, key="b", sequence=7)]
        assert inbox.accept_all(None, more, sender="shop") == [True, True, True]
        assert PLAIN not in home.everything()
        processed(inbox, lambda event: look(event, seen))
        assert PLAIN not in home.everything()  # what is processed, and what waits: for number 1 of b in an order
    assert (payload(1), {"origin": SECRET, "sequence": "1"}, "application/json", "shop", True) in seen
    assert (PLAIN, {}, "application/octet-stream", "shop", False) in seen
    assert sorted(one[0]["n"] for one in seen if isinstance(one[0], dict)) == ([1, 2, 4] if order is None else [1, 2])
    assert len(home.data_keys()) == 1


async def test_asyncio_programs_do_the_same(home: Home) -> None:
    seen: list[Any] = []

    async def handle(event: Event) -> None:
        look(event, seen)

    with home.vault() as vault, inbox_of(home, None):
        async with AsyncInbox(home.url, "orders", vault=vault, settings=QUICK) as inbox:
            assert await inbox.accept(None, sent(1), sender="shop")
            assert await inbox.accept(None, sent(2, tenant="huber"), sender="shop")
            assert await inbox.accept_all(None, [sent(3), sent(4)], sender="shop") == [True, True]
            assert PLAIN not in home.everything()
            with home.vault() as reading:  # which has no key in memory
                async with AsyncInbox(home.url, "orders", vault=reading, settings=QUICK) as other:
                    await aprocessed(other, handle)
            assert {one.event.payload["address"] for one in await inbox.events.list()} == {SECRET}
    assert sorted(one[0]["n"] for one in seen) == [1, 2, 3, 4]
    assert len(home.data_keys()) == 2


def test_no_file_of_a_database_server_has_it(home: Home) -> None:
    """Not its log, not its index, not what it keeps to undo."""
    asked = {"p": "SHOW data_directory", "m": "SELECT @@datadir"}.get(home.url[0])
    folder = Path(home.url.removeprefix("sqlite:///")).parent if asked is None else Path(one(home.url, asked))
    secret, clear = "Rosengasse 9, 8. Stock", "Lilienweg 3, Hinterhaus"
    with home.vault() as vault, inbox_of(home, vault) as inbox:
        inbox.accept_all(None, [Event("Moved", {"to": secret}, tenant="meier", headers={"from": secret})])
        processed(inbox, fail, settings=ONCE)
        assert inbox.dead.count() == 1
    with inbox_of(home, None) as inbox:
        inbox.accept(None, Event("Moved", {"to": clear}))
    if asked is not None and home.url[0] == "p":
        rows(home.url, "CHECKPOINT")

    def found(text: str) -> bool:
        files = [file for file in folder.rglob("*") if file.is_file()]
        return any(text.encode() in _bytes(file) for file in files)

    assert found(clear)  # the look itself finds what is there
    assert not found(secret)


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # a file that the server has just removed
        return b""


def test_retries_and_dead_letters_stay_encrypted_and_are_opened_for_those_who_may(home: Home) -> None:
    with home.vault() as vault, inbox_of(home, vault) as inbox:
        inbox.accept(None, sent(1), sender="shop")
        processed(inbox, fail, settings=ONCE)
        (letter,) = inbox.dead.list()
        assert letter.event.payload == payload(1)
        assert letter.event.headers["origin"] == SECRET
        assert PLAIN not in home.everything()
        with Inbox(home.url, "orders", settings=QUICK) as blind:
            (letter,) = blind.dead.list()
            assert letter.event.content_type == SEALED_MESSAGE
            assert set(letter.event.headers) == {KEY_HEADER}
            with pytest.raises(Undecodable, match="codec=Vault"):
                _ = letter.event.payload
        with Inbox(home.url, "orders", codec=vault, settings=QUICK) as reader:  # it looks, and accepts nothing
            assert reader.dead.list()[0].event.payload == payload(1)
        assert inbox.dead.replay(ALL) == 1
        seen: list[Any] = []
        processed(inbox, lambda event: look(event, seen))
        assert [one[0]["n"] for one in seen] == [1]


def test_several_messages_in_one_transaction(home: Home) -> None:
    seen: list[Any] = []
    with home.vault() as vault, inbox_of(home, vault) as inbox:
        inbox.accept_all(None, [sent(n) for n in range(5)], sender="shop")
        processed(inbox, lambda event: look(event, seen), batch=5)
    assert sorted(one[0]["n"] for one in seen) == [0, 1, 2, 3, 4]


def test_listeners_filters_and_models_see_the_message_as_it_came(home: Home) -> None:
    seen: list[Any] = []
    listeners: Listeners[Any] = Listeners(where=lambda event: event.headers["origin"] == SECRET)

    @listeners.on("AddressChanged", model=Address, where=lambda event: event.is_json and event.payload["n"] > 1)
    def changed(event: Event[Address]) -> None:
        seen.append(event.payload.n)

    with home.vault() as vault, inbox_of(home, vault) as inbox:
        inbox.accept_all(None, [sent(1), sent(2)])
        processed(inbox, listeners)
    assert seen == [2]


def test_duplicates_are_known_as_before(home: Home) -> None:
    with home.vault() as vault, inbox_of(home, vault) as inbox:
        event = sent(1)
        assert inbox.accept(None, event, sender="shop")
        assert not inbox.accept(None, event, sender="shop")
        assert inbox.accept(None, event, sender="another")
        assert inbox.accept_all(None, [event, sent(2)], sender="shop") == [False, True]
        processed(inbox, lambda event: None)
        assert not inbox.accept(None, event, sender="shop")
    with inbox_of(home, None) as inbox:
        assert not inbox.accept(None, event, sender="shop")


def test_in_a_transaction_of_the_caller_the_key_is_there_if_the_message_is(home: Home) -> None:
    with home.vault() as vault, inbox_of(home, vault) as inbox, Outbox(home.url) as box:
        with suppress(ZeroDivisionError), box.transaction() as tx:
            inbox.accept(tx.connection, sent(1))
            raise ZeroDivisionError
        assert home.data_keys() == []
        with box.transaction() as tx:
            inbox.accept(tx.connection, sent(1))
            inbox.accept_all(tx.connection, [sent(2), sent(3)])
        assert len(home.data_keys()) == 1
        assert {kept.event.payload["n"] for kept in inbox.events.list()} == {1, 2, 3}


async def test_in_a_transaction_of_an_asyncio_program_too(home: Home) -> None:
    with home.vault() as vault, inbox_of(home, None):
        async with AsyncInbox(home.url, "orders", vault=vault, settings=QUICK) as inbox, AsyncOutbox(home.url) as box:
            with suppress(ZeroDivisionError):
                async with box.transaction() as tx:
                    await inbox.accept(tx.connection, sent(1))
                    raise ZeroDivisionError
            assert home.data_keys() == []
            async with box.transaction() as tx:
                assert await inbox.accept(tx.connection, sent(1))
                assert await inbox.accept_all(tx.connection, [sent(2), sent(3)]) == [True, True]
            assert {kept.event.payload["n"] for kept in await inbox.events.list()} == {1, 2, 3}
    assert len(home.data_keys()) == 1
    assert PLAIN not in home.everything()


async def test_many_that_arrive_at_once_for_subjects_that_have_no_key_yet(home: Home) -> None:
    messages = [sent(n, tenant=f"t{n % 7}") for n in range(60)]
    with home.vault() as vault, inbox_of(home, vault) as inbox:
        async with AsyncInbox(home.url, "orders", vault=vault, settings=QUICK) as other:
            answers = await asyncio.gather(*(other.accept(None, one, sender="shop") for one in messages[:30]))
        with ThreadPoolExecutor(8) as pool:
            answers += pool.map(lambda one: inbox.accept(None, one, sender="shop"), messages)
        assert answers == [True] * 30 + [False] * 30 + [True] * 30
        assert sorted(kept.event.payload["n"] for kept in inbox.events.list()) == list(range(60))
        assert PLAIN not in home.everything()
        erase(vault, "t3")  # however many keys it has got
        assert {kept.event.tenant for kept in inbox.events.list()} == {f"t{n}" for n in range(7) if n != 3}


def test_a_remembered_key_costs_no_statement(home: Home) -> None:
    with home.vault() as vault, inbox_of(home, vault) as inbox:
        inbox.accept(None, sent(1))
        inbox.accept(None, sent(2))
        with pytest.raises(StopIteration):
            next(inbox._sealed([sent(3), sent(4)], "shop"))


def test_headers_that_may_be_shown_are_named(home: Home) -> None:
    shown = QUICK.replaced({"admin.shown_headers": "Region, other"})
    with home.vault() as vault, inbox_of(home, vault, settings=shown) as inbox:
        event = told(1, headers={"region": "north", "origin": SECRET, "priority": "3", "traceparent": "00-1-2-00"})
        inbox.accept(None, event)
        with Inbox(home.url, "orders") as blind:
            headers = dict(blind.events.list()[0].event.headers)
            assert headers.pop(KEY_HEADER)
            assert headers == {"region": "north", "priority": "3", "traceparent": "00-1-2-00"}
        assert dict(inbox.events.list()[0].event.headers) == dict(event.headers)
    assert PLAIN not in home.everything()


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("tenant", {"meier", ""}),
        ("key", {"k1", ""}),
        (lambda event: None if event.key is None else f"{event.sender}-{event.payload['n']}", {"shop-1"}),
    ],
)
def test_whose_key_encrypts(sqlite: Home, subject: Any, expected: set[str]) -> None:
    with sqlite.vault(subject=subject) as vault, inbox_of(sqlite, vault) as inbox:
        inbox.accept_all(None, [sent(1, key="k1"), sent(2, tenant=None)], sender="shop")
        assert {key[1] for key in sqlite.data_keys()} == expected
        assert [kept.event.payload["n"] for kept in inbox.events.list()] == [1, 2]
        stored = rows(sqlite.url, "SELECT count(*) FROM orders WHERE content_type = '" + SEALED_MESSAGE + "'")
        assert stored[0][0] == len(expected)


def test_the_largest_message_there_is(home: Home) -> None:
    seen: list[Any] = []
    with home.vault() as vault, inbox_of(home, vault) as inbox:
        inbox.accept(None, Event("Large", b"x" * MAX_PAYLOAD, headers={"note": "n" * 8_000}))
        processed(inbox, lambda event: seen.append(len(event.payload)))
    assert seen == [MAX_PAYLOAD]
    with home.vault() as vault, Outbox(home.url, codec=vault) as box, box.transaction() as tx:
        with pytest.raises(InvalidEvent, match="limit"):  # before the database refuses it, and with it the transaction
            box.write(tx, Event("Large", b"x" * MAX_PAYLOAD))


def test_tiers(sqlite: Home) -> None:
    seen: list[Any] = []
    with sqlite.vault() as vault, TieredInbox(sqlite.url, "tiered", vault=vault, settings=QUICK) as inbox:
        inbox.migrate()
        inbox.accept(None, told(1, headers={"priority": "1", "sequence": "1"}, key="a"))
        inbox.accept(None, told(2, headers={"priority": "9"}))
        assert PLAIN not in sqlite.everything()
        inbox.process(lambda event: seen.append(event.payload["n"])).once()
    assert sorted(seen) == [1, 2]


def test_wrong_arguments_are_named(sqlite: Home) -> None:
    with pytest.raises(ConfigError, match="vault to be a Vault, got str"):
        Inbox(sqlite.url, "orders", vault="secret")  # type: ignore[arg-type]
    with sqlite.vault(None) as keyless, inbox_of(sqlite, keyless) as inbox, pytest.raises(ConfigError, match="keyring"):
        inbox.accept(None, sent())
    with sqlite.vault(subject=lambda event: 1 / 0) as vault, inbox_of(sqlite, vault) as inbox:
        with pytest.raises(InvalidEvent, match="cannot be told: ZeroDivisionError"):
            inbox.accept(None, sent())
        assert inbox.events.count() == 0


# -- from a broker --------------------------------------------------------------------------------------------


async def test_an_ingest_stores_nothing_in_clear_text_not_even_what_it_cannot_read(home: Home) -> None:
    seen: list[Any] = []
    unread = Incoming(channel="orders", place="orders/9", body=PLAIN, headers={"event_id": "\x01"}, key=None)
    with inbox_of(home, None), home.vault(subject=lambda event: event.payload["owner"]) as vault:
        async with AsyncInbox(home.url, "orders", vault=vault, settings=QUICK) as inbox:
            honest = Event("Moved", {"owner": "meier", "address": SECRET}, headers={"origin": SECRET})
            async with ingesting(inbox, [honest, Event("Moved", {"address": SECRET}), unread]) as ingest:
                await ingest.drain()
                assert ingest.counts.done == 3
            assert PLAIN not in home.everything()
            letters = await inbox.dead.list()
            assert len(letters) == 2
            assert any("cannot be told: KeyError" in (letter.error or "") for letter in letters)
            assert any(letter.event.payload == PLAIN for letter in letters)
            await aprocessed(inbox, lambda event: look(event, seen))
    assert [one[0]["owner"] for one in seen] == ["meier"]
    assert {key[1] for key in home.data_keys()} == {"meier", ""}


async def test_a_key_service_that_is_away_delays_an_ingest_and_loses_nothing(sqlite: Home) -> None:
    asked: list[str] = []

    def wrap(secret: bytes, context: Any) -> bytes:
        asked.append(context["subject"])
        if len(asked) < 3:
            raise TimeoutError("no answer")
        return secret[::-1]

    kms = Keyring({"kms": Kms(wrap, lambda wrapped, context: wrapped[::-1])})
    with inbox_of(sqlite, None), sqlite.vault(kms) as vault:
        async with AsyncInbox(sqlite.url, "orders", vault=vault, settings=QUICK) as inbox:
            async with ingesting(inbox, [sent(1)]) as ingest:
                await until(lambda: ingest.counts.done == 1)
            assert (await inbox.events.list())[0].event.payload == payload(1)
    assert len(asked) == 3


async def test_an_ingest_does_not_start_where_nothing_can_be_encrypted(sqlite: Home) -> None:
    with inbox_of(sqlite, None), Vault(sqlite.url, MASTER, table="elsewhere") as vault:
        async with AsyncInbox(sqlite.url, "orders", vault=vault) as inbox:
            with pytest.raises(SchemaMissing, match="vault create"):
                async with ingesting(inbox, []):
                    pass


def person(event: Event) -> str:
    return f"person-{event.payload['n']}"


@pytest.mark.parametrize(("subject", "expected"), [("tenant", {"meier"}), ("vault.test_inbox:person", {"person-1"})])
def test_the_command_encrypts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subject: str, expected: set[str]
) -> None:
    relaybox = Command()
    home = Home(make_database("sqlite", tmp_path))
    source = ScriptedSource()
    source.put(sent(1))
    monkeypatch.setattr("relaybox.cli.ingest.source_from_url", lambda url, options: source)
    env: dict[str, Any] = {"RELAYBOX_URL": home.url, "RELAYBOX_SOURCE": "kafka://broker/orders"}
    words = ("ingest", "--inbox", "orders", "--migrate", "--once", "--wait", "50ms", "--subject")
    assert "needs a keyring" in relaybox(*words, subject, exit_code=1, **env).output
    env["RELAYBOX_MASTER_KEYS"] = new_master_key("m1")
    assert "expected --subject to be tenant, key or" in relaybox(*words, "mine", exit_code=1, **env).output
    assert "accepted 1" in relaybox(*words, subject, **env).output
    assert PLAIN not in home.everything()
    assert {key[1] for key in home.data_keys()} == expected
    id = one(home.url, "SELECT event_id FROM orders")
    shown = relaybox.json("events", "show", id, "--of", "inbox/orders", "--payload", **env)
    assert shown["event"]["payload"] == payload(1)
    assert shown["event"]["headers"]["origin"] == SECRET
    blind = {**env, "RELAYBOX_MASTER_KEYS": ""}
    assert SECRET not in relaybox("events", "show", id, "--of", "inbox/orders", "--payload", **blind).output
