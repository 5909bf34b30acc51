"""What becomes of encrypted messages: two vaults, erasure, rotation, a vault that comes later, tables of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inbox.kit import aprocessed, gaps, processed
from inbox.their_table import Theirs
from kit import QUICK, make_database, one, rows
from relaybox import (
    ALL,
    AsyncInbox,
    ConfigError,
    Event,
    Inbox,
    Keyring,
    Outbox,
    Relay,
    Retry,
    Vault,
    Where,
    erase,
)
from relaybox.errors import Erased
from relaybox.event import KEY_HEADER, SEALED
from relaybox.relay.inbox_sink import InboxSink
from relaybox.types import Columns, Order

from .kit import SECRET, Home, told
from .messages import ONCE, PLAIN, inbox_of, ingesting, look, payload, sent

# -- what senders have encrypted ------------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path) -> Home:
    """The sender, with a database and master keys of its own."""
    folder = tmp_path / "shop"
    folder.mkdir()
    return Home(make_database("sqlite", folder))


THEIRS = Keyring({"shop": b"s" * 32})


def relayed(shop: Home, home: Home, vault: Vault, *events: Event) -> None:
    """By a relay, which knows no keys of the receiver; and then as an ingest stores it."""
    with Outbox(shop.url, codec=vault, settings=QUICK) as box:
        with box.transaction() as tx:
            box.write_all(tx, events)
        with Relay(box, InboxSink(home.url, sender="shop"), to="arrived") as relay:
            relay.drain()


def test_what_a_sender_has_encrypted_is_encrypted_again_and_either_may_erase(home: Home, shop: Home) -> None:
    seen: list[Any] = []
    with shop.vault(THEIRS) as theirs, home.vault() as ours, Inbox(home.url, "arrived") as arrived:
        arrived.migrate()
        relayed(shop, home, theirs, told(1), told(2, tenant="huber"), told(3, tenant="weber"))
        with inbox_of(home, ours, codec=theirs) as inbox:
            for kept in arrived.events.list():
                assert kept.event.content_type == SEALED
                inbox.accept(None, kept.event, sender="shop")
            assert [kept.event.payload["n"] for kept in inbox.events.list()] == [1, 2, 3]
            assert inbox.events.list()[0].event.headers["relaybox-content-type"] == "application/json"
            ours.destroy("meier")
            theirs.destroy("huber")
            processed(inbox, lambda event: seen.append(event.payload["n"]))
            assert seen == [3]
            letters = inbox.dead.list()
            assert [(letter.error or "").partition(":")[0] for letter in letters] == ["Erased", "Erased"]
        assert PLAIN not in home.everything()


def test_the_subject_may_be_in_what_a_sender_has_encrypted(home: Home, shop: Home) -> None:
    with shop.vault(THEIRS) as theirs, Inbox(home.url, "arrived") as arrived:
        arrived.migrate()
        relayed(shop, home, theirs, told(1))
        with home.vault(subject=lambda event: str(event.payload["n"])) as ours:
            with inbox_of(home, ours, codec=theirs) as inbox:
                inbox.accept(None, arrived.events.list()[0].event, sender="shop")
    assert [key[1] for key in home.data_keys()] == ["1"]


def test_a_relay_into_an_inbox_of_others_may_encrypt_for_them(home: Home, shop: Home) -> None:
    with home.vault() as ours, inbox_of(home, ours) as inbox, Outbox(shop.url, settings=QUICK) as box:
        with box.transaction() as tx:
            box.write_all(tx, [sent(1), sent(2)])
        with Relay(box, InboxSink(home.url, inbox="orders", sender="shop", vault=ours), to="orders") as relay:
            relay.drain()
        assert PLAIN not in home.everything()
        assert [kept.event.payload["n"] for kept in inbox.events.list()] == [1, 2]


# -- forgotten ------------------------------------------------------------------------------------------------


def test_an_erased_subject_is_nowhere_in_an_inbox_and_others_are_as_before(home: Home) -> None:
    with home.vault() as vault, inbox_of(home, vault) as inbox:
        inbox.accept_all(None, [sent(1), sent(2, tenant="huber")])
        processed(inbox, lambda event: None)
        inbox.accept_all(None, [sent(3), sent(4, tenant="huber")])

        def told_all(event: Event) -> None:
            raise ValueError(event.payload["address"])

        processed(inbox, told_all, settings=ONCE)
        assert PLAIN in home.everything()  # in the error that the listener raised
        inbox.accept_all(None, [sent(5), sent(6, tenant="huber")])
        plan = erase(vault, "meier", dry_run=True)
        assert (plan.keys, plan.copies) == (1, {"inbox/orders": 2})
        done = erase(vault, "meier", reason="asked us to", actor="ann")
        assert (done.keys, done.copies) == (1, {"inbox/orders": 2})
        inbox.dead.discard(Where(tenant="huber"))
        assert PLAIN not in home.cleaned()
        processed(inbox, lambda event: None)
        kept = {one.event.tenant: one.event for one in inbox.events.list(state="done")}
        assert kept["huber"].payload["n"] in (2, 6)
        with pytest.raises(Erased, match="was destroyed"):
            _ = kept["meier"].payload
        assert set(kept["meier"].headers) == {KEY_HEADER}
        assert not inbox.accept(None, kept["meier"])  # its id is known as before
        assert inbox.accept(None, sent(7))  # a new customer of that name
        assert inbox.events.list(state="open")[0].event.payload == payload(7)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("dead", ["block", "skip"])
def test_a_destroyed_key_stops_no_ordered_key(home: Home, dead: Any, batch: int) -> None:
    seen: list[int] = []
    with home.vault() as vault, inbox_of(home, vault) as inbox:
        inbox.configure(order=Order(start=1, dead=dead))
        numbered = [sent(n, key="a", sequence=n, tenant="meier" if n == 2 else "huber") for n in (1, 2, 3, 4)]
        inbox.accept_all(None, [*numbered, sent(5, tenant="meier"), sent(6, tenant="huber")])
        vault.destroy("meier")
        with home.vault() as fresh, Inbox(home.url, "orders", vault=fresh, settings=QUICK) as other:
            processed(other, lambda event: seen.append(event.payload["n"]), batch=batch)
            assert [n for n in seen if n < 5] == [1, 3, 4]
            assert 6 in seen
            assert gaps(other) == []
            letters = other.dead.list()
            assert len(letters) == 2
            assert all((letter.error or "").startswith("Erased: ") for letter in letters)
            assert other.dead.replay(ALL) == 2  # which changes nothing about it
            processed(other, lambda event: seen.append(event.payload["n"]), batch=batch)
            assert other.dead.count() == 2
        assert erase(vault, "meier").copies == {"inbox/orders": 2}


def test_an_error_of_a_listener_that_is_called_so_still_holds_its_key(sqlite: Home) -> None:
    class Erased(Exception):  # not ours
        pass

    def raising(event: Event) -> None:
        raise Erased

    with sqlite.vault() as vault, inbox_of(sqlite, vault) as inbox:
        inbox.configure(order=Order(start=1), retry=Retry(attempts=1))
        inbox.accept_all(None, [sent(n, key="a", sequence=n) for n in (1, 2)])
        processed(inbox, raising)
        assert len(gaps(inbox)) == 1


async def test_a_destroyed_key_is_no_crash_of_an_async_processor(home: Home) -> None:
    seen: list[int] = []

    async def handle(event: Event) -> None:
        seen.append(event.payload["n"])

    with home.vault() as vault, inbox_of(home, vault) as inbox:
        inbox.accept_all(None, [sent(1), sent(2, tenant="huber")])
        vault.destroy("meier")
        async with AsyncInbox(home.url, "orders", vault=vault, settings=QUICK) as other:
            await aprocessed(other, handle)
        assert seen == [2]
        assert (inbox.dead.list()[0].error or "").startswith("Erased: ")


def test_master_keys_are_changed_without_touching_messages(home: Home) -> None:
    newer, newest = Keyring({"m2": b"2" * 32, "m1": b"1" * 32}), Keyring({"m2": b"2" * 32})
    with home.vault() as vault, inbox_of(home, vault) as inbox:
        inbox.accept_all(None, [sent(1), sent(2, tenant="huber")])
        before = rows(home.url, "SELECT payload FROM orders ORDER BY seq")
    with home.vault(newer) as vault, inbox_of(home, vault) as inbox:
        inbox.accept(None, sent(3))
        assert vault.rotate() == 2
    assert rows(home.url, "SELECT payload FROM orders ORDER BY seq")[:2] == before
    seen: list[int] = []
    with home.vault(newest) as vault, inbox_of(home, vault) as inbox:
        processed(inbox, lambda event: seen.append(event.payload["n"]))
    assert sorted(seen) == [1, 2, 3]


# -- an inbox that had no vault -------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [None, Order(start=1)], ids=["plain", "ordered"])
def test_messages_from_before_there_was_a_vault_are_processed_as_they_are(home: Home, order: Order | None) -> None:
    seen: list[Any] = []
    with inbox_of(home, None) as inbox:
        inbox.configure(order=order)
        inbox.accept_all(None, [sent(n, key="a", sequence=n) for n in (1, 2)])
    with home.vault() as vault, inbox_of(home, vault) as inbox:
        inbox.accept_all(None, [sent(n, key="a", sequence=n) for n in (2, 3)])
        inbox.accept(None, sent(4, key="a", sequence=4))
        processed(inbox, lambda event: look(event, seen))
        assert {kept.event.payload["n"] for kept in inbox.events.list()} == {1, 2, 3, 4}
        contents = [kept.event.content_type for kept in inbox.events.list()]
        assert contents.count("application/json") == 2
    numbers = [one[0]["n"] for one in seen]
    if order is None:
        assert sorted(numbers) == [1, 2, 2, 3, 4]
    else:
        assert numbers == [1, 2, 3, 4]
    assert all(one[1]["origin"] == SECRET and one[2] == "application/json" for one in seen)


def test_an_order_that_comes_later_begins_behind_what_was_processed(home: Home) -> None:
    seen: list[int] = []
    with home.vault() as vault, inbox_of(home, vault) as inbox:
        inbox.accept_all(None, [sent(n, key="a", sequence=n) for n in (1, 2)])
        processed(inbox, lambda event: None)
        inbox.configure(order=Order(start=1))
        inbox.accept_all(None, [sent(n, key="a", sequence=n) for n in (3, 4)])
        processed(inbox, lambda event: seen.append(event.payload["n"]))
    assert seen == [3, 4]


# -- tables of others -----------------------------------------------------------------------------------------

BYTES = {"postgres": "bytea", "sqlite": "blob", "mysql": "longblob"}


def test_an_adopted_table_with_bytes_and_headers_is_encrypted(home: Home) -> None:
    seen: list[Any] = []
    kind = BYTES[home.url.partition(":")[0].replace("postgresql", "postgres")]
    theirs = Theirs(home.url, columns=Columns(headers="headers"), payload=kind)
    with home.vault() as vault, Inbox(home.url, "orders", vault=vault, settings=QUICK) as inbox:
        inbox.adopt(theirs.table, theirs.columns)
        assert inbox.accept(None, sent(1, key="a"), sender="shop")
        event = sent(2, key="a")
        assert inbox.accept_all(None, [event, event], sender="shop") == [True, False]
        inbox.accept(None, sent(3, tenant="huber", key="a"), sender="shop")
        assert PLAIN not in home.everything()
        vault.destroy("huber")
        processed(inbox, lambda event: look(event, seen), settings=ONCE)
        assert sorted(one[0]["n"] for one in seen) == [1, 2]
        assert seen[0][1:4] == ({"origin": SECRET}, "application/json", "shop")
        assert (inbox.dead.list()[0].error or "").startswith("Erased: ")
        assert PLAIN not in home.everything()


async def test_one_without_says_so(home: Home) -> None:
    theirs = Theirs(home.url)
    with home.vault() as vault, Inbox(home.url, "orders", vault=vault, settings=QUICK) as inbox:
        inbox.adopt(theirs.table, theirs.columns)
        with pytest.raises(ConfigError, match="'orders_in' was adopted without a payload column of bytes"):
            inbox.accept(None, sent(1, key="a"))
        async with AsyncInbox(home.url, "orders", vault=vault) as other:
            with pytest.raises(ConfigError, match="without a payload column of bytes"):
                async with ingesting(other, []):
                    pass
        assert one(home.url, "SELECT count(*) FROM orders_in") == 0
        theirs.insert("m1", 1)
        seen: list[Any] = []
        processed(inbox, lambda event: seen.append(event.id))  # what others insert is processed as before
        assert seen == ["m1"]
        assert erase(vault, "meier").copies == {}
