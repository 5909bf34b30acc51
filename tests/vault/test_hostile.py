"""Rows that somebody has changed, keys that are wrong, and a search for secrets where they must not be."""

from __future__ import annotations

import base64
import json
import logging
import os
from collections.abc import Callable
from typing import Any

import pytest

from inbox.kit import processed
from ingest.webhook_kit import SECRETS, post, serving, signed
from kit import QUICK, rows
from relaybox import ALL, AsyncInbox, ConfigError, Event, Inbox, Keyring, Outbox, Reject, StartFrom, Topic, Vault
from relaybox.brokers.webhook import WebhookReceiver
from relaybox.errors import Undecodable
from relaybox.event import INNER_HEADER, KEY_HEADER, SEALED
from relaybox.types import Kms, Order
from relaybox.vault import vault as vault_module
from relaybox.vault.cipher import Cipher, NotSealedHere

from .kit import MASTER, SECRET, Home, told

LATER = QUICK.replaced({"delivery.retry.base": "1h", "delivery.retry.max": "2h"})
HEX: dict[str, Callable[[bytes], str]] = {
    "postgresql": lambda data: f"'\\x{data.hex()}'::bytea",
    "sqlite": lambda data: f"x'{data.hex()}'",
    "mysql": lambda data: f"x'{data.hex()}'",
}


def inbox_of(home: Home, vault: Vault, **options: Any) -> Inbox:
    inbox = Inbox(home.url, "orders", vault=vault, **{"settings": QUICK, **options})
    inbox.migrate()
    return inbox


def set_row(home: Home, id: str, **values: str) -> None:
    changes = ", ".join(f"{column} = {value}" for column, value in values.items())
    rows(home.url, f"UPDATE orders SET {changes} WHERE event_id = '{id}'")


def stored(home: Home, id: str) -> tuple[bytes, str]:
    payload, headers = rows(home.url, f"SELECT payload, headers FROM orders WHERE event_id = '{id}'")[0]
    return bytes(payload), headers.decode() if isinstance(headers, bytes) else headers


def message(id: str, *, tenant: str = "huber") -> Event:
    return told(1, id=id, tenant=tenant, key="k")


@pytest.mark.parametrize("ordered", [False, True], ids=["plain", "ordered"])
def test_a_changed_row_is_a_dead_letter_and_those_beside_it_are_processed(home: Home, ordered: bool) -> None:
    seen: list[str] = []
    with home.vault() as vault, inbox_of(home, vault) as inbox:
        if ordered:
            inbox.configure(order=Order(start=1))
        inbox.accept(None, message("other", tenant="meier"), sender="bank")
        body, headers = stored(home, "other")
        literal = HEX[home.url.partition(":")[0].partition("+")[0]]
        changes: dict[str, dict[str, str]] = {
            "of-another-tenant": {"payload": literal(body), "headers": f"'{headers}'"},
            "under-another-key": {"headers": f"'{headers}'"},
            "tenant": {"tenant_id": "'meier'"},
            "sender": {"sender": "'bank'"},
            "key": {"aggregate_id": "'j'"},
            "type": {"event_type": "'Refund'"},
            "aggregate": {"aggregate_type": "'Bank'"},
            "short": {"payload": literal(body[:20])},
            "empty": {"payload": literal(b"")},
            "form": {"payload": literal(b"\x02" + body[1:])},
            "noise": {"payload": literal(os.urandom(500))},
            "no-headers": {"headers": "NULL"},
            "no-json": {"headers": "'{'"},
            "no-object": {"headers": "'[1]'"},
            "no-key": {"headers": '\'{"a": "b"}\''},
            "key-is-a-list": {"headers": f"'{json.dumps({KEY_HEADER: ['x']})}'"},
            "key-is-a-number": {"headers": f"'{json.dumps({KEY_HEADER: 5})}'"},
            "unknown-key": {"headers": f"'{json.dumps({KEY_HEADER: 'nobody'})}'"},
            "sealed-by-a-sender": {"content_type": f"'{SEALED}'"},
        }
        for name, change in changes.items():
            inbox.accept_all(None, [message(name), message(f"beside-{name}")], sender="shop")
            set_row(home, name, **change)
        processed(inbox, lambda event: seen.append(event.payload and event.id))
        assert sorted(seen) == sorted(["other", *(f"beside-{name}" for name in changes)])
        letters = {letter.event.id: letter.error or "" for letter in inbox.dead.list()}
        assert letters.keys() == changes.keys()
        assert {error.partition(":")[0] for error in letters.values()} == {"Undecodable"}
        assert not any(SECRET in error for error in letters.values())
        for letter in inbox.dead.list():  # nor do those who look get another's payload
            with pytest.raises(Undecodable):
                _ = letter.event.payload


def test_a_changed_row_of_an_outbox_is_a_dead_letter_and_those_beside_it_are_delivered(home: Home) -> None:
    seen: list[str] = []
    literal = HEX[home.url.partition(":")[0].partition("+")[0]]
    with home.vault() as vault, Outbox(home.url, codec=vault, settings=QUICK) as box:

        def text(value: str) -> str:
            return "'" + (value.replace("\\", "\\\\") if home.url.startswith("mysql") else value) + "'"

        def write(*ids: str) -> None:
            with box.transaction() as tx:
                box.write_all(tx, [told(1, id=id, key="k1") for id in ids])

        write("good")
        headers = json.loads(rows(home.url, "SELECT headers FROM outbox_event")[0][0])
        changes: dict[str, dict[str, str]] = {
            "no-headers": {"headers": "NULL"},
            "short": {"payload": literal(b"\x01")},
            "empty": {"payload": literal(b"")},
            "type": {"event_type": "'Refund'"},
            "tenant": {"tenant_id": "'other'"},
            "nobodys": {"tenant_id": "NULL"},
            "aggregate": {"aggregate_id": "'other'"},
            "keyless": {"aggregate_id": "NULL"},
            "swapped": {"tenant_id": "'k1'", "aggregate_id": "'meier'"},
            **{
                f"{name}-{place}": {"headers": text(json.dumps(headers | {header: value}))}
                for name, header in (("key", KEY_HEADER), ("inner", INNER_HEADER))
                for place, value in enumerate((["x"], {"x": "y"}, 5, None, True, "", "\0", "\ud800", "x" * 1_000))
            },
        }
        for id, change in changes.items():
            write(id, f"beside-{id}")
            values = ", ".join(f"{column} = {value}" for column, value in change.items())
            rows(home.url, f"UPDATE outbox_event SET {values} WHERE event_id = '{id}'")
        with home.vault() as fresh, Outbox(home.url, codec=fresh, settings=QUICK) as other:
            with other.deliver(lambda event: seen.append(event.payload and event.id)) as service:
                service.drain()
        assert sorted(seen) == sorted(["good", *(f"beside-{id}" for id in changes)])
        letters = {letter.event.id: (letter.error or "").partition(":")[0] for letter in box.dead.list()}
        assert letters == dict.fromkeys(changes, "Undecodable")


def test_a_box_that_was_moved_to_another_tenant_or_key_says_so_wherever_it_is_copied(postgres: Home) -> None:
    """Parked events and the rows of queues are copies with columns of their own."""
    with postgres.vault() as vault, Outbox(postgres.url, codec=vault, settings=QUICK) as box:
        for topic in (Topic.queue("jobs"), Topic.pub_sub("orders")):
            box.topics.configure(topic)
        groups = [box.topics.queue("jobs"), box.topics.group("orders", "mail", start=StartFrom.earliest())]
        with box.transaction() as tx:
            box.write_all(tx, [told(1, topic=name) for name in ("jobs", "orders")])
        for group in groups:
            with group.deliver(refuse) as service:
                service.drain()
        for table in ("outbox_event_queue_1", "outbox_event_parked"):
            rows(postgres.url, f"UPDATE {table} SET tenant_id = 'other'")
        for group in groups:
            (letter,) = group.dead.list()
            with pytest.raises(Undecodable, match="its payload, id, type, key, tenant or content type is not the one"):
                _ = letter.event.payload
        for table in ("outbox_event_queue_1", "outbox_event_parked"):
            rows(postgres.url, f"UPDATE {table} SET tenant_id = 'meier'")
        assert [group.dead.list()[0].event.payload["n"] for group in groups] == [1, 1]
        seen: list[Any] = []
        for group in groups:
            assert group.dead.replay(ALL) == 1
            with group.deliver(lambda event: seen.append(event.payload["n"])) as service:
                service.drain()
        assert seen == [1, 1]


def refuse(event: Event) -> None:
    assert event.payload
    raise Reject("no")


def test_what_a_row_no_longer_says_is_known_from_the_box(sqlite: Home) -> None:
    """A worker that goes by the tenant must not be told that there is none."""
    seen: list[Any] = []
    with sqlite.vault() as vault, inbox_of(sqlite, vault) as inbox:
        inbox.accept(None, message("m"), sender="shop")
        set_row(sqlite, "m", tenant_id="NULL", aggregate_id="NULL")
        processed(inbox, lambda event: seen.append((event.tenant, event.key, event.sender)))
    assert seen == [("huber", "k", "shop")]


def test_every_bit_counts() -> None:
    cipher = Cipher(b"k" * 32)
    box = cipher.seal(b"plain", b"context")
    for place in range(len(box)):
        for bit in (1, 128):
            changed = box[:place] + bytes([box[place] ^ bit]) + box[place + 1 :]
            with pytest.raises(NotSealedHere):
                cipher.open(changed, b"context")
        with pytest.raises(NotSealedHere):
            cipher.open(box[:place], b"context")
    with pytest.raises(NotSealedHere):
        cipher.open(box, b"another")


def test_no_nonce_comes_twice_not_even_in_a_process_that_was_forked() -> None:
    cipher = Cipher(b"k" * 32)
    nonces = [cipher.seal(b"", b"")[1:13] for _ in range(10_000)]
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, b"".join(cipher.seal(b"", b"")[1:13] for _ in range(100)))
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reading, 1_200)
    os.close(reading)
    os.close(writing)
    nonces += [theirs[place : place + 12] for place in range(0, 1_200, 12)]
    nonces += [cipher.seal(b"", b"")[1:13] for _ in range(100)]
    assert len(set(nonces)) == len(nonces) == 10_200


@pytest.mark.parametrize(
    "change",
    [
        "wrapped = 'no base64 ä'",
        "wrapped = 'AAAA'",
        "wrapped = ''",
        "subject = 'meier'",
        "master = 'm9'",
        "master = NULL",
    ],
)
def test_a_changed_data_key_is_told_and_its_messages_are_tried_again(sqlite: Home, change: str) -> None:
    """It is no message's fault: with the right keyring or row it is processed."""
    seen: list[int] = []
    with sqlite.vault() as vault, inbox_of(sqlite, vault) as inbox:
        inbox.accept(None, message("m"))
    ((kept, subject, master),) = rows(sqlite.url, "SELECT wrapped, subject, master FROM relaybox_data_key")
    rows(sqlite.url, f"UPDATE relaybox_data_key SET {change}")
    with sqlite.vault() as vault, inbox_of(sqlite, vault) as inbox:
        processed(inbox, lambda event: seen.append(1), settings=LATER)
        (waits,) = inbox.events.list(state="open")
        assert (waits.error or "").startswith("ConfigError: ")
        assert kept not in (waits.error or "")
        if not change.startswith("subject"):
            with pytest.raises(ConfigError):
                inbox.accept(None, message("another"))
    rows(sqlite.url, f"UPDATE relaybox_data_key SET wrapped = '{kept}', subject = '{subject}', master = '{master}'")
    with sqlite.vault() as vault, inbox_of(sqlite, vault) as inbox:
        rows(sqlite.url, "UPDATE orders_pending SET due = 0")
        processed(inbox, lambda event: seen.append(2))
    assert seen == [2]


def test_a_wrong_master_key_of_the_same_name_opens_nothing(home: Home) -> None:
    with home.vault() as vault, inbox_of(home, vault) as inbox:
        inbox.accept(None, message("m"))
    with home.vault(Keyring({"m1": b"9" * 32})) as vault, inbox_of(home, vault) as inbox:
        with pytest.raises(ConfigError, match="stands for another key"):
            _ = inbox.events.list()[0].event.payload
        with pytest.raises(ConfigError, match="stands for another key"):
            inbox.accept(None, message("n"))
        assert inbox.events.count() == 1


@pytest.mark.parametrize("secret", [b"", b"k" * 16, b"k" * 24, "k" * 32, None])
def test_a_key_service_that_answers_with_another_kind_of_key_is_refused(sqlite: Home, secret: Any) -> None:
    """A key of 16 bytes would encrypt as well."""
    kms = Keyring({"kms": Kms(lambda data, context: data, lambda data, context: secret)})
    with sqlite.vault(kms) as vault, inbox_of(sqlite, vault) as inbox:
        inbox.accept(None, message("m"))
    with sqlite.vault(kms) as vault, inbox_of(sqlite, vault) as inbox:
        with pytest.raises(ConfigError, match="to unwrap 32 bytes"):
            inbox.accept(None, message("n"))


async def test_a_webhook_that_cannot_be_encrypted_is_answered(sqlite: Home) -> None:
    away = [True]

    def wrap(secret: bytes, context: Any) -> bytes:
        if away[0]:
            raise RuntimeError(f"no answer for {secret!r}")
        return secret

    kms = Keyring({"kms": Kms(wrap, lambda wrapped, context: wrapped)})
    with sqlite.vault(kms, subject=lambda event: event.payload["owner"]) as vault, inbox_of(sqlite, vault):
        receiver = WebhookReceiver(AsyncInbox(sqlite.url, "orders", vault=vault), secrets=SECRETS[:1])
        import httpx

        async with serving(receiver) as at, httpx.AsyncClient(base_url=at, timeout=30) as client:
            good = json.dumps({"type": "Moved", "data": {"owner": "meier", "to": SECRET}, "owner": "meier"}).encode()
            assert await post(client, b'{"to": 1}', signed("m1", b'{"to": 1}')) == 400
            assert await post(client, good, signed("m2", good)) == 503
            away[0] = False
            assert await post(client, good, signed("m2", good)) == 200
    assert SECRET.encode() not in sqlite.everything()


def test_no_key_is_in_a_log_an_error_or_a_repr(
    sqlite: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data_key, master = bytes(range(100, 132)), bytes(range(32, 64))
    monkeypatch.setattr(vault_module, "new_secret", lambda: data_key)
    ring, told_all = Keyring({"m1": master}), ""
    with caplog.at_level(logging.DEBUG):
        with sqlite.vault(ring) as vault, inbox_of(sqlite, vault) as inbox:
            inbox.accept(None, message("m"))
            inbox.accept_all(None, [message("n"), message("o")])
            set_row(sqlite, "n", payload="x'01'")
            processed(inbox, lambda event: 1 / 0)
            told_all += f"{vault!r} {vars(vault)} {ring!r} {vars(ring)} {inbox!r} {vars(inbox)} {vars(vault._keys)}"
            told_all += " ".join(f"{kept!r} {kept.event!r}" for kept in (*inbox.events.list(), *inbox.dead.list()))
            told_all += " ".join(repr(entry) for entry in vault.audit())
        with sqlite.vault(MASTER) as wrong, inbox_of(sqlite, wrong) as inbox:
            for kept in inbox.events.list():
                try:
                    _ = kept.event.payload
                except Exception as error:
                    told_all += f"{error!r} {error.__cause__!r} {error.__context__!r}"
            processed(inbox, lambda event: None)
    told_all += caplog.text
    assert len(told_all) > 1_000
    for secret in (data_key, master):
        for form in (secret.hex(), base64.b64encode(secret).decode(), repr(secret)[2:-1], secret.decode("latin-1")):
            assert form not in told_all
    assert SECRET not in told_all
