"""Roles of a database that were granted what `relaybox grants` prints, and the command line as a process."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import psycopg

from relaybox import Settings
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
