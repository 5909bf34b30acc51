"""Roles of a database that were granted what `relaybox grants` prints, and the command line as a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
import pytest

from kit import wait_until
from relaybox import Event, Inbox, Keyring, Reject, Settings, Vault, erase
from relaybox.errors import StoreError
from relaybox.store.grants import DatabaseRole
from relaybox.types import OutboxSettings

CALLING = Settings(outbox=OutboxSettings(write_function=True))


@dataclass
class Estate:
    """A database with everything in it, and a role of the database for each role there is."""

    url: str
    names: dict[str, str]

    def at(self, role: DatabaseRole) -> str:
        return self.url.replace("relaybox@", f"{self.names[role]}@")

    def refused(self, role: DatabaseRole, text: str) -> bool:
        with psycopg.connect(self.at(role), autocommit=True) as session:
            try:
                session.execute(text.encode())
            except psycopg.errors.InsufficientPrivilege:
                return True
            return False


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "relaybox", *words], capture_output=True, text=True, check=False)


RING = Keyring({"m": b"m" * 32})


def in_secret(at: Callable[[DatabaseRole], str], name: str = "inbox") -> None:
    """Messages are accepted encrypted, opened, erased and looked at, each by the role whose job that is."""
    seen: list[object] = []

    def handle(event: Event) -> None:
        seen.append(event.payload)
        if event.type == "Bad":
            raise Reject("no")

    url = at("receiver")
    with Vault(url, RING) as vault, Inbox(url, name, vault=vault) as receiver:
        assert receiver.accept(None, Event("Paid", 71, tenant="huber"), sender="shop")
        assert receiver.accept_all(None, [Event("Paid", 72, tenant="meier"), Event("Bad", 73, tenant="meier")])
        with pytest.raises(StoreError, match="denied"):
            vault.destroy("meier")
    url = at("worker")
    with Vault(url, RING) as vault, Inbox(url, name, vault=vault) as worker, worker.process(handle):
        wait_until(lambda: sorted(seen, key=str) == [71, 72, 73])
        wait_until(lambda: worker.dead.count() == 1)
        with pytest.raises(StoreError, match="denied"):
            worker.accept(None, Event("Paid", 74, tenant="somebody new"))
    url = at("reader")
    with Vault(url, RING) as vault, Inbox(url, name, vault=vault) as reader:
        assert reader.dead.list()[0].event.payload == 73
        with pytest.raises(StoreError, match="denied"):
            vault.destroy("meier")
    with Vault(at("dashboard")) as vault:
        assert vault.masters()["m"] >= 2
        with pytest.raises(StoreError, match="denied"):
            vault.keys_of("meier")
    with Vault(at("operator"), RING) as vault, Inbox(at("operator"), name, vault=vault) as operator:
        assert erase(vault, "meier", reason="asked us to").copies == {f"inbox/{name}": 1}
        assert operator.dead.count() == 0
        vault.rotate(reason="nothing to do")
