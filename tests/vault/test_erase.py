"""Forgetting somebody, and another master key: in code and by command."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Command
from kit import QUICK, one, rows
from relaybox import (
    ConfigError,
    Event,
    Inbox,
    Keyring,
    Listeners,
    NotFound,
    Outbox,
    Relay,
    Retry,
    StartFrom,
    Topic,
    Vault,
    Where,
    erase,
)
from relaybox.errors import Erased
from relaybox.relay.inbox_sink import InboxSink
from relaybox.types import Progress

from .kit import MASTER, SECRET, Home, told

NEWER = Keyring({"m2": b"2" * 32, "m1": b"1" * 32})
NEWEST = Keyring({"m2": b"2" * 32})


def write(box: Outbox, *events: Event) -> None:
    with box.transaction() as tx:
        box.write_all(tx, events)


def fail(event: Event) -> None:
    raise ValueError(f"no such address: {event.payload['address']}")


def kill(box: Outbox) -> None:
    listeners: Listeners[Any] = Listeners()
    listeners.on("AddressChanged", retry=Retry(attempts=1))(fail)
    with box.deliver(listeners) as service:
        service.drain()


def test_an_erased_subject_is_nowhere_and_others_are_as_before(home: Home) -> None:
    with home.vault() as vault, Outbox(home.url, codec=vault, settings=QUICK) as box:
        with Inbox(home.url, "orders", codec=vault, settings=QUICK) as inbox:
            inbox.migrate()
            write(box, told(1), told(2, tenant="huber"))
            with Relay(box, InboxSink(home.url), to="orders") as relay:
                relay.drain()
            write(box, told(3), told(4, tenant="huber"))
            kill(box)
            assert box.dead.count() == 2
            assert SECRET.encode() in home.everything()  # in the error that the listener raised
            write(box, told(5), told(6, tenant="huber"))
            wrapped = [key[3] for key in home.data_keys() if key[1] == "meier"]

            planned = erase(vault, "meier", dry_run=True)
            assert (planned.keys, planned.copies) == (1, {"outbox": 2, "inbox/orders": 1})
            assert box.dead.count() == 2
            came: list[Progress] = []
            done = erase(vault, "meier", reason="asked us to", actor="ann", progress=came.append)
            assert {(at.done, at.what) for at in came} >= {(2, "erase outbox"), (3, "erase inbox/orders")}
            assert [at.done for at in came] == sorted(at.done for at in came)
            assert (done.keys, done.copies) == (1, {"outbox": 2, "inbox/orders": 1})
            assert "brokers" in done.remains[0]

            left = [one.event for one in (*box.dead.list(), *box.events.list(state="open"), *inbox.events.list())]
            assert sorted(event.payload["n"] for event in left) == [2, 4, 6]
            for kept in box.events.list(Where(tenant="meier")):
                with pytest.raises(Erased, match="was destroyed"):
                    _ = kept.event.payload
            erased = next(key for key in home.data_keys() if key[4] is not None)
            assert erased[1:4] == (None, None, None)
            assert wrapped[0].encode() not in b"".join(str(row).encode() for row in home.data_keys())
            for entries in (vault.audit(), box.audit(), inbox.audit()):
                assert (entries[0].actor, entries[0].reason) == ("ann", "asked us to")
                assert not any("meier" in entry.what for entry in entries)
            with pytest.raises(NotFound, match="no data key of 'meier'"):
                erase(vault, "meier")
            write(box, told(7))  # a new customer of that name
            assert [key[1] for key in home.data_keys() if key[1]] == ["huber", "meier"]


def test_no_byte_of_an_erased_payload_or_key_is_left_in_the_file(sqlite: Home) -> None:
    with sqlite.vault() as vault, Outbox(sqlite.url, codec=vault, settings=QUICK) as box:
        write(box, told(1))
        kill(box)
        (key,) = sqlite.data_keys()
        assert SECRET.encode() in sqlite.everything()
        erase(vault, "meier")
    with sqlite3.connect(sqlite.url.removeprefix("sqlite:///")) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        raw.execute("VACUUM")
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    raw.close()
    assert SECRET.encode() not in sqlite.everything()
    assert str(key[3]).encode() not in sqlite.everything()


def test_what_a_log_still_has_becomes_a_dead_letter_that_says_why(postgres: Home) -> None:
    seen: list[int] = []
    with postgres.vault() as vault, Outbox(postgres.url, codec=vault, settings=QUICK) as box:
        box.topics.configure(Topic.pub_sub("changes"))
        group = box.topics.group("changes", "mail", start=StartFrom.earliest())
        write(box, told(1, topic="changes", key="a"), told(2, topic="changes", key="b", tenant="huber"))
        erase(vault, "meier")
        with group.deliver(lambda event: seen.append(event.payload["n"])) as service:
            service.drain()
        assert seen == [2]
        (letter,) = group.dead.list()
        assert (letter.error or "").startswith("Erased: ")
        assert group.dead.discard(Where(error="Erased")) == 1


def test_parked_events_of_a_group_are_given_up(postgres: Home) -> None:
    with postgres.vault() as vault, Outbox(postgres.url, codec=vault, settings=QUICK) as box:
        box.topics.configure(Topic.pub_sub("changes"))
        group = box.topics.group("changes", "mail", start=StartFrom.earliest(), retry=Retry(attempts=1), ordered=False)
        write(box, told(1, topic="changes"))
        with group.deliver(fail) as service:
            service.drain()
        assert group.dead.count() == 1
        assert erase(vault, "meier").copies == {"group/changes/mail": 1}
        assert group.dead.count() == 0
        assert SECRET.encode() not in postgres.everything()


def test_an_erasure_that_was_cut_off_is_finished_by_the_next(sqlite: Home) -> None:
    with sqlite.vault() as vault, Outbox(sqlite.url, codec=vault, settings=QUICK) as box:
        write(box, told(1))
        vault.destroy("meier")
        assert box.events.count(Where(tenant="meier")) == 1
        assert erase(vault, "meier").copies == {"outbox": 1}
        assert vault.keys_of("meier") == []


def test_a_reason_that_is_required_is_asked_for_before_anything_is_destroyed(sqlite: Home) -> None:
    strict = QUICK.replaced({"admin.require_reason": True})
    with sqlite.vault(settings=strict) as vault, Outbox(sqlite.url, codec=vault) as box:
        write(box, told(1))
        with pytest.raises(ConfigError, match="require_reason"):
            erase(vault, "meier")
        with pytest.raises(ConfigError, match="require_reason"):
            vault.rotate()
        assert box.events.list()[0].event.payload["n"] == 1


def test_rotation_wraps_anew_and_touches_no_payload(home: Home) -> None:
    with home.vault() as vault, Outbox(home.url, codec=vault) as box:
        write(box, told(1), told(2, tenant="huber"))
        vault.destroy("huber")
    before = rows(home.url, "SELECT payload FROM outbox_event ORDER BY seq")
    with home.vault(NEWER) as vault, Outbox(home.url, codec=vault) as box:
        assert box.events.list()[0].event.payload["n"] == 1  # the old one still opens
        write(box, told(3, tenant="new"))
        assert vault.masters() == {"m1": 1, "m2": 1, None: 1}
        assert vault.rotate(dry_run=True) == 1
        assert vault.rotate(reason="yearly") == 1
        assert vault.masters() == {"m2": 2, None: 1}
        assert vault.rotate() == 0
        assert vault.audit()[0].verb == "rotate"
    assert rows(home.url, "SELECT payload FROM outbox_event ORDER BY seq")[:2] == before
    with home.vault(NEWEST) as vault, Outbox(home.url, codec=vault) as box:
        found = box.events.list()
        assert [found[place].event.payload["n"] for place in (0, 2)] == [1, 3]
    with home.vault(MASTER) as vault, Outbox(home.url, codec=vault) as box:
        with pytest.raises(ConfigError, match="wrapped by master key 'm2'"):
            _ = box.events.list()[0].event.payload


def test_names_that_a_text_collation_takes_for_the_same_are_two_subjects(home: Home) -> None:
    with home.vault() as vault, Outbox(home.url, codec=vault) as box:
        write(box, told(1, tenant="Meier"), told(2, tenant="meier"), told(3, tenant="meier "))
        assert len(home.data_keys()) == 3
        vault.destroy("meier")
        assert one(home.url, "SELECT count(*) FROM relaybox_data_key WHERE erased_at IS NOT NULL") == 1
        first, second, third = box.events.list()
        assert (first.event.payload["n"], third.event.payload["n"]) == (1, 3)
        with pytest.raises(Erased):
            _ = second.event.payload


@pytest.mark.parametrize("subject", ["", None, 7])
def test_a_subject_must_be_named(sqlite: Home, subject: Any) -> None:
    with sqlite.vault() as vault, pytest.raises(ConfigError, match="name of a subject"):
        erase(vault, subject)


def test_erasing_needs_no_master_key(sqlite: Home) -> None:
    with sqlite.vault() as vault, Outbox(sqlite.url, codec=vault) as box:
        write(box, told(1))
    with sqlite.vault(None) as keyless:
        assert erase(keyless, "meier").copies == {"outbox": 1}
        with Outbox(sqlite.url, codec=keyless) as box, pytest.raises(ConfigError, match="has no keyring"):
            write(box, told(2))


# -- by command ---------------------------------------------------------------------------------------


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    relaybox = Command()
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path}/shop.db"
    env = {"RELAYBOX_URL": url}
    relaybox("migrate", **env)
    assert [entry["name"] for entry in relaybox.json("vault", "create", **env)["applied"]] == ["vault", "audit"]
    path = tmp_path / "keys"
    relaybox("vault", "new-key", "m1", "--to", str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    assert "two keys" in relaybox("vault", "new-key", "m1", "--to", str(path), exit_code=1).output
    assert relaybox("vault", "new-key", "m9").stdout.startswith("m9 ")
    with Vault(url, Keyring.file(path)) as vault, Outbox(url, codec=vault) as box:
        write(box, told(1), told(2, tenant="huber"))
        shown = box.events.list()[0].event
    assert "relaybox-key-id" not in relaybox("events", "show", shown.id, **env).stdout
    named = relaybox.json("events", "show", shown.id, **env, RELAYBOX_ADMIN_SHOWN_HEADERS="Relaybox-Key-Id, other")
    assert list(named["event"]["headers"]) == ["relaybox-key-id"]
    hidden = relaybox("events", "show", shown.id, "--payload", **env)
    assert SECRET not in hidden.stdout
    opened = relaybox.json("events", "show", shown.id, "--payload", **env, RELAYBOX_KEYRING=str(path))
    assert opened["event"]["payload"]["address"] == SECRET

    monkeypatch.setenv("OLD", path.read_text().strip())
    relaybox("vault", "new-key", "m2", "--to", str(path))
    keys = ",".join(path.read_text().splitlines())
    doctor = {one["check"]: one for one in relaybox.json("doctor", **env)["findings"]}
    assert (doctor["data keys"]["level"], "2 by m1" in doctor["data keys"]["text"]) == ("ok", True)
    assert keys.startswith("m2 ")
    assert "RELAYBOX_KEYRING" in relaybox("vault", "rotate", "--yes", exit_code=1, **env).output
    assert relaybox.json("vault", "rotate", "--dry-run", **env, RELAYBOX_MASTER_KEYS=keys)["rotated"] == 2
    assert relaybox.json("vault", "rotate", "--yes", **env, RELAYBOX_MASTER_KEYS=keys)["rotated"] == 2
    assert relaybox.json("vault", "status", **env) == {"schema": "vault.status/1", "masters": {"m2": 2}, "destroyed": 0}
    with Vault(url, Keyring.environment("OLD")) as vault, Outbox(url, codec=vault) as box:
        write(box, told(3, tenant="old"))
    doctor = {one["check"]: one for one in relaybox.json("doctor", **env)["findings"]}
    assert (doctor["data keys"]["level"], "2 by m2" in doctor["data keys"]["text"]) == ("warning", True)
    rows(url, "DELETE FROM relaybox_data_key WHERE master = 'm1'")
    rows(url, "DELETE FROM outbox_event WHERE tenant_id = 'old'")

    assert relaybox.json("erase", "meier", "--dry-run", **env)["copies"] == {"outbox": 1}
    relaybox("erase", "meier", exit_code=1, answer="n\n", **env)
    told_ = relaybox("erase", "meier", "--yes", "--reason", "asked us to", "--actor", "ann", **env).output
    assert "1 data key(s) destroyed" in told_
    assert "brokers" in told_
    assert "no data key of 'meier'" in relaybox("erase", "meier", "--yes", exit_code=1, **env).output
    assert relaybox.json("vault", "status", **env)["destroyed"] == 1
    assert len(relaybox.json("events", "list", **env)["events"]) == 1
    assert SECRET not in relaybox.printed.replace(SECRET, "", 1)
