"""Vaults over one database, and a look for plain text past relaybox."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from kit import rows
from relaybox import Event, Keyring, Vault

SECRET = "Meier, Goethestrasse 7"
MASTER = Keyring({"m1": b"1" * 32})


class Home:
    def __init__(self, url: str) -> None:
        self.url = url
        with self.vault() as vault:
            vault.migrate()

    def vault(self, keyring: Keyring | None = MASTER, **options: Any) -> Vault:
        return Vault(self.url, keyring, **options)

    def data_keys(self) -> list[tuple[Any, ...]]:
        return rows(self.url, "SELECT id, subject, master, wrapped, erased_at FROM relaybox_data_key ORDER BY id")

    def tables(self) -> Iterator[str]:
        if self.url.startswith("sqlite"):
            found = rows(self.url, "SELECT name FROM sqlite_master WHERE type = 'table'")
        else:
            here = "current_schema()" if self.url.startswith("postgres") else "database()"
            found = rows(self.url, f"SELECT table_name FROM information_schema.tables WHERE table_schema = {here}")
        for (name,) in found:
            yield name

    def cleaned(self) -> bytes:
        """Everything, after the database has removed what was deleted."""
        if self.url.startswith("sqlite"):
            with sqlite3.connect(self.url.removeprefix("sqlite:///")) as raw:
                raw.executescript("PRAGMA wal_checkpoint(TRUNCATE); VACUUM; PRAGMA wal_checkpoint(TRUNCATE)")
            raw.close()
        return self.everything()

    def everything(self) -> bytes:
        """Every value of every table, and the bytes of a database that is files."""
        seen = b""
        if self.url.startswith("postgres"):
            with psycopg.connect(self.url) as raw, raw.cursor() as cursor:
                for name in self.tables():
                    with cursor.copy(f"COPY (SELECT * FROM {name}) TO STDOUT (FORMAT binary)") as copy:
                        seen += b"".join(bytes(part) for part in copy)
            return seen
        for name in self.tables():
            for row in rows(self.url, f"SELECT * FROM {name}"):
                for value in row:
                    seen += bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode()
                    seen += b"\n"
        if self.url.startswith("sqlite"):
            path = Path(self.url.removeprefix("sqlite:///"))
            for file in path.parent.glob(f"{path.name}*"):
                seen += file.read_bytes()
        return seen


def told(n: int = 1, *, tenant: str | None = "meier", **options: Any) -> Event:
    return Event("AddressChanged", {"n": n, "address": SECRET}, tenant=tenant, **options)
